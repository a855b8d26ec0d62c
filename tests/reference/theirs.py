"""Classes of `transformers` with random weights, and where each of their tensors goes in our specs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import transformers
import zoo
from safetensors.torch import save_file
from torch import nn

Tensors = dict[str, torch.Tensor]


@dataclass
class Case:
    """One architecture: their module, how to call it on our inputs, and how its tensors become ours.

    `tensors` maps our names to theirs, or to a function of their state dict; `{i}` runs over the layers of `layers`. None: the
    spec's own `checkpoint:` section does it.
    """

    spec: str
    theirs: nn.Module
    call: Callable[[nn.Module, Tensors], Tensors]
    tensors: dict | None = None
    layers: dict[str, range] = field(default_factory=dict)
    sizes: tuple[dict[str, int], ...] = ({"B": 1, "S": 1}, {"B": 3, "S": 11})
    rtol: float = 2e-5
    prepare: Callable[[nn.Module], None] = lambda theirs: None                   # after its weights were drawn

    def load(self, folder) -> nn.Module:
        """Our module with their weights; every tensor of theirs must be read, and every one of ours written."""
        state = {k: v.detach().clone().contiguous() for k, v in self.theirs.named_parameters()}
        module = zoo.model(self.spec).module(seed=5)
        if self.tensors is None:
            save_file(state, folder / "theirs.safetensors")
            zoo.model(self.spec).load_weights(module, folder / "theirs.safetensors")
            return module.eval()
        ours, read = module.state_dict(), set[str]()
        written = {}
        for pattern, source in self.tensors.items():
            for name, given in _spread(pattern, source, self.layers):
                written[name] = given(_Reading(state, read)) if callable(given) else _Reading(state, read)[given]
        assert set(written) == set(ours), set(written) ^ set(ours)
        assert read == set(state), set(state) - read
        for name, value in written.items():
            assert ours[name].shape == value.shape, (name, ours[name].shape, value.shape)
        module.load_state_dict(written)
        return module.eval()


class _Reading(dict):
    """A state dict that remembers what was asked of it."""

    def __init__(self, state, read):
        super().__init__(state)
        self.read = read

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


def _spread(pattern, source, layers):
    if "{i}" not in pattern:
        return [(pattern, source)]
    found = next(r for start, r in layers.items() if pattern.startswith(start))
    put = lambda i: (lambda s: source(s, i)) if callable(source) else source.replace("{i}", str(i))  # noqa: E731
    return [(pattern.replace("{i}", str(i)), put(i)) for i in found]


def mask(x: Tensors, length: str, tokens: str) -> torch.Tensor:
    """int64 [B, S], 1 where a token is valid."""
    return (torch.arange(x[tokens].shape[1]) < x[length][:, None]).long()



def _bert():
    return transformers.BertModel(transformers.BertConfig(
        vocab_size=41, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, attn_implementation="eager"))


def bert():
    def call(model, x):
        out = model(input_ids=x["tokens"], token_type_ids=x["segments"], attention_mask=mask(x, "length", "tokens"))
        return {"hidden": out.last_hidden_state, "pooled": out.pooler_output}
    return Case("bert-base", _bert(), call)


def sentence(model, x):
    """Mean over the valid tokens, of length one (sentence-transformers' pooling and normalisation)."""
    keep = mask(x, "length", "tokens")
    hidden = model(input_ids=x["tokens"], attention_mask=keep).last_hidden_state
    mean = (hidden * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
    return {"embedding": nn.functional.normalize(mean, dim=1), "hidden": hidden}


def minilm():
    return Case("minilm", _bert(), sentence)


GATED = {
    "layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.attention.query.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.attention.key.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.attention.value.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.attention.output.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.ffn_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
}
MLP = {f"layers.{{i}}.ffn.{n}.weight": f"model.layers.{{i}}.mlp.{n}_proj.weight" for n in ("gate", "up", "down")}
ENDS = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
HEAD = {"logits.weight": "lm_head.weight"}


def plain(model, x):
    return {"logits": model(input_ids=x["tokens"], use_cache=False).logits}


def gemma2():
    config = transformers.Gemma2Config(
        vocab_size=53, hidden_size=24, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=40, query_pre_attn_scalar=12, sliding_window=6, attn_logit_softcapping=50.0, rms_norm_eps=1e-6,
        final_logit_softcapping=30.0, hidden_activation="gelu_pytorch_tanh", attn_implementation="eager", tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    four = {"layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
            "layers.{i}.attention_end.weight": "model.layers.{i}.post_attention_layernorm.weight",
            "layers.{i}.ffn_norm.weight": "model.layers.{i}.pre_feedforward_layernorm.weight",
            "layers.{i}.ffn_end.weight": "model.layers.{i}.post_feedforward_layernorm.weight"}
    return Case("hard/gemma2", transformers.Gemma2ForCausalLM(config), plain, ENDS | GATED | four | MLP, {"layers": range(5)})


def t5():
    config = transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=16, d_ff=48, num_layers=3, num_heads=2, feed_forward_proj="relu", layer_norm_epsilon=1e-6,
        relative_attention_num_buckets=32, relative_attention_max_distance=128, tie_word_embeddings=True, decoder_start_token_id=0)
    def call(model, x):
        out = model(input_ids=x["source"], attention_mask=mask(x, "source_length", "source"), decoder_input_ids=x["target"],
                    decoder_attention_mask=mask(x, "target_length", "target"), use_cache=False)
        return {"logits": out.logits}
    def attention(ours, theirs):
        return {f"{ours}.{a}.weight": f"{theirs}.{b}.weight" for a, b in
                [("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")]}
    tensors = {"embed": "shared.weight", "encoder_norm.weight": "encoder.final_layer_norm.weight",
               "decoder_norm.weight": "decoder.final_layer_norm.weight"}
    tensors |= {f"{s}_bias.table": f"{s}.block.0.layer.0.SelfAttention.relative_attention_bias.weight" for s in ("encoder", "decoder")}
    for stack, kinds in [("encoder", ["attention", "ffn"]), ("decoder", ["attention", "cross", "ffn"])]:
        for k, kind in enumerate(kinds):
            at = f"{stack}.block.{{i}}.layer.{k}"
            tensors[f"{stack}.{{i}}.{kind}_norm.weight"] = f"{at}.layer_norm.weight"
            if kind == "ffn":
                tensors |= {f"{stack}.{{i}}.ffn.up.weight": f"{at}.DenseReluDense.wi.weight",
                            f"{stack}.{{i}}.ffn.down.weight": f"{at}.DenseReluDense.wo.weight"}
            else:
                tensors |= attention(f"{stack}.{{i}}.{kind}", f"{at}.{'EncDec' if kind == 'cross' else 'Self'}Attention")
    return Case("hard/t5", transformers.T5ForConditionalGeneration(config), call, tensors,
                {"encoder": range(3), "decoder": range(3)},
                sizes=({"B": 1, "S": 1, "T": 1}, {"B": 3, "S": 11, "T": 7}, {"B": 2, "S": 150, "T": 141}))


def albert():
    config = transformers.AlbertConfig(
        vocab_size=71, embedding_size=8, hidden_size=24, num_hidden_layers=12, num_hidden_groups=2, num_attention_heads=3,
        intermediate_size=96, max_position_embeddings=64, hidden_act="gelu", layer_norm_eps=1e-12, attn_implementation="eager")
    def call(model, x):
        return {"hidden": model(input_ids=x["tokens"], attention_mask=mask(x, "length", "tokens")).last_hidden_state}
    at = "encoder.albert_layer_groups.{i}.albert_layers.0"
    names = {"attention.query": "attention.query", "attention.key": "attention.key", "attention.value": "attention.value",
             "attention.output": "attention.dense", "attention_norm": "attention.LayerNorm", "ffn.up": "ffn",
             "ffn.down": "ffn_output", "ffn_norm": "full_layer_layer_norm"}
    tensors = {f"layers.{6 * g}.{a}.{kind}": f"{at.replace('{i}', str(g))}.{b}.{kind}"
               for g in range(2) for a, b in names.items() for kind in ("weight", "bias")}
    tensors |= {"token.weight": "embeddings.word_embeddings.weight", "norm.weight": "embeddings.LayerNorm.weight",
                "norm.bias": "embeddings.LayerNorm.bias", "projected.weight": "encoder.embedding_hidden_mapping_in.weight",
                "projected.bias": "encoder.embedding_hidden_mapping_in.bias",
                "placed.table.weight": lambda s: s["embeddings.position_embeddings.weight"]
                + s["embeddings.token_type_embeddings.weight"][0]}               # all of a text is segment 0
    return Case("hard/albert", transformers.AlbertModel(config, add_pooling_layer=False), call, tensors, rtol=1e-4)


def vit(rows=3, columns=2):
    """Their table holds a vector for each patch; ours are sums of a row and a column, so theirs is set to such sums."""
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, hidden_act="gelu", layer_norm_eps=1e-6,
        image_size=(16 * rows, 16 * columns), patch_size=16, num_channels=3, qkv_bias=True, num_labels=11, attn_implementation="eager")
    model = transformers.ViTForImageClassification(config)
    def call(model, x):
        out = model(pixel_values=x["image"], output_hidden_states=True)
        return {"logits": out.logits, "sequence": model.vit.layernorm(out.hidden_states[-1])}
    y, x = torch.randn(64, 24), torch.randn(64, 24)
    def prepare(model):
        places = model.vit.embeddings.position_embeddings
        places[0, 1:] = (y[:rows, None] + x[None, :columns]).reshape(-1, 24)
    tensors = {"class": lambda s: s["vit.embeddings.cls_token"] + s["vit.embeddings.position_embeddings"][:, :1],
               "place_y.weight": lambda s: y, "place_x.weight": lambda s: x}
    names = {"attention.query": "attention.q_proj", "attention.key": "attention.k_proj", "attention.value": "attention.v_proj",
             "attention.output": "attention.o_proj", "attention_norm": "layernorm_before", "ffn_norm": "layernorm_after",
             "ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"}
    for kind in ("weight", "bias"):
        tensors |= {f"layers.{{i}}.{a}.{kind}": f"vit.layers.{{i}}.{b}.{kind}" for a, b in names.items()}
        tensors |= {f"patches.{kind}": f"vit.embeddings.patch_embeddings.projection.{kind}", f"norm.{kind}": f"vit.layernorm.{kind}",
                    f"logits.{kind}": f"classifier.{kind}"}
    return Case("hard/vit", model, call, tensors, {"layers": range(2)}, prepare=prepare,
                sizes=({"B": 1, "H": rows, "W": columns}, {"B": 3, "H": rows, "W": columns}))


def moe():
    """Mixtral with plain feed-forward blocks in its first two layers."""
    config = transformers.MixtralConfig(
        vocab_size=47, hidden_size=16, num_hidden_layers=5, num_attention_heads=2, num_key_value_heads=2, intermediate_size=20,
        num_local_experts=6, num_experts_per_tok=2, rms_norm_eps=1e-6, sliding_window=None, attn_implementation="eager",
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    model = transformers.MixtralForCausalLM(config)
    dense = transformers.LlamaConfig(hidden_size=16, intermediate_size=36, num_attention_heads=2)
    for i in range(2):
        model.model.layers[i].mlp = transformers.models.llama.modeling_llama.LlamaMLP(dense)
    tensors = ENDS | HEAD | GATED
    for i in range(2):
        tensors |= {k.replace("{i}", str(i)): v.replace("{i}", str(i)) for k, v in MLP.items()}
    for i in range(2, 5):
        at = f"model.layers.{i}.mlp"
        tensors[f"layers.{i}.ffn.score.weight"] = f"{at}.gate.weight"
        for e in range(6):
            mine = f"layers.{i}.ffn.mix.{e}"
            tensors |= {f"{mine}.gate.weight": lambda s, at=at, e=e: s[f"{at}.experts.gate_up_proj"][e, :20],
                        f"{mine}.up.weight": lambda s, at=at, e=e: s[f"{at}.experts.gate_up_proj"][e, 20:],
                        f"{mine}.down.weight": lambda s, at=at, e=e: s[f"{at}.experts.down_proj"][e]}
    return Case("hard/moe", model, plain, tensors, {"layers": range(5)})


def mla():
    config = transformers.DeepseekV2Config(
        vocab_size=59, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=12,
        kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7, intermediate_size=48, first_k_dense_replace=2,
        rms_norm_eps=1e-6, attn_implementation="eager", tie_word_embeddings=False, rope_parameters={"rope_type": "default",
                                                                                                    "rope_theta": 1e4})
    def call(model, x):
        return {"logits": model(input_ids=x["tokens"], attention_mask=x["keep"].long(), use_cache=False).logits}
    names = {"q_down": "q_a_proj", "q_norm": "q_a_layernorm", "q_up": "q_b_proj", "kv_down": "kv_a_proj_with_mqa",
             "kv_norm": "kv_a_layernorm", "kv_up": "kv_b_proj", "output": "o_proj"}
    norms = {k: v for k, v in GATED.items() if "norm" in k}
    latent = {f"layers.{{i}}.attention.{a}.weight": f"model.layers.{{i}}.self_attn.{b}.weight" for a, b in names.items()}
    return Case("hard/mla", transformers.DeepseekV2ForCausalLM(config), call, ENDS | HEAD | MLP | norms | latent, {"layers": range(2)})


CASES = {c.__name__: c for c in (bert, minilm, gemma2, t5, albert, vit, moe, mla)}
