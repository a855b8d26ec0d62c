"""Export for ONNX Runtime GenAI: a decoder over growing keys and values, and the `genai_config.json` that its engine reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.onnx import emit
from ..backends.onnx.emit import Emitted
from ..ir.dimension import Dim
from ..ir.graph import Graph
from ..lang.diagnostic import Diagnostics, diagnostic
from ..runtime.data import random_inputs
from ..runtime.manifest import FULL, Input, Manifest, Output, read
from ..runtime.session import open
from ..stages.stream import step_form
from ..stages.stream.past import IDS, LOGITS, MASK, POSITIONS, Cached, with_past
from .certify import TOLERANCES, Case, Findings, chooses, reference
from .plan import Plan

CONFIG = "genai_config.json"
CONTEXT = 32768                          # positions of a model that has no bound
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")


def emit_genai(model: Any, plan: Plan) -> tuple[Emitted, dict[str, str]]:
    """The decoder, and the texts of the files beside it by name. Raises Diagnostics, as `step_form` and `emit` do."""
    form = step_form(model.lowered, plan.along)
    cached = with_past(form)
    asked = [*(("stop", n) for n in plan.stop), *([("pad", plan.pad)] if plan.pad is not None else [])]
    wrong = [diagnostic("bad-command", f"`--{what} {n}` is no id of this model", help=f"ids lie in [0, {cached.vocabulary})")
             for what, n in asked if not 0 <= n < cached.vocabulary]
    if wrong:
        raise Diagnostics(wrong)
    limits = [b.limit for b in model.lowered.bounds if b.symbol == form.along]
    made = emit(cached.graph, plan.target, plan.dtype, (), model.spec_text, plan.typical)
    told = config(cached, plan.target, min(limits, default=CONTEXT), plan.stop, plan.pad)
    return _with_total(made), {CONFIG: told} | _tokenizer(plan.tokenizer)


def _tokenizer(given: Path | None) -> dict[str, str]:
    """The files of a tokenizer by name: those of a folder, or those beside a tokenizer.json. Raises Diagnostics (`bad-path`)."""
    if given is None:
        return {}
    folder = given if given.is_dir() else given.parent
    found = {TOKENIZER[0]: folder / TOKENIZER[0] if given.is_dir() else given} | {n: folder / n for n in TOKENIZER[1:]}
    try:
        texts = {name: path.read_text(encoding="utf-8") for name, path in found.items() if path.is_file()}
        json.loads(texts[TOKENIZER[0]])
    except KeyError:
        raise _no_tokenizer(given, f"there is no {TOKENIZER[0]}") from None
    except (OSError, ValueError) as error:
        raise _no_tokenizer(given, str(error)) from None
    return texts


def _no_tokenizer(given: Path, why: str) -> Diagnostics:
    return Diagnostics([diagnostic("bad-path", f"`{given}` holds no tokenizer", note=why,
                                   help="give a tokenizer.json, or a folder that holds one")])


def _with_total(made: Emitted) -> Emitted:
    """The size of the mask as one dimension of its own, as engines and manifests name it."""
    mask = next(a for a in made.inputs if a.name == MASK)
    (rows, whole), total = mask.type.shape, Dim.symbol("total")
    for value in (*made.model.graph.input, *made.model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == str(whole):
                dim.dim_param = str(total)
    inputs = tuple(replace(a, type=replace(a.type, shape=(rows, total))) if a is mask else a for a in made.inputs)
    return replace(made, inputs=inputs)


def config(cached: Cached, target: str, context: int, stop: Sequence[int], pad: int | None) -> str:
    """`genai_config.json` of a decoder. The engine hides the padding id wherever it stands in a prompt; without `pad` it is the first id
    of `stop`."""
    options: dict[str, Any] = {"log_id": "onnxruntime-genai", "provider_options": [{"cuda": {}}] if target == "ort-cuda" else []}
    decoder = {
        "session_options": options, "filename": "model.onnx", "head_size": cached.width, "hidden_size": cached.heads * cached.width,
        "num_attention_heads": cached.heads, "num_key_value_heads": cached.heads, "num_hidden_layers": cached.layers,
        "inputs": {"input_ids": IDS, "attention_mask": MASK, "position_ids": POSITIONS,
                   "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
        "outputs": {"logits": LOGITS, "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
    }
    whole = {
        "model": {"type": "decoder", "vocab_size": cached.vocabulary, "context_length": context,
                  "pad_token_id": stop[0] if pad is None else pad, "eos_token_id": list(stop), "decoder": decoder},
        "search": {"max_length": context, "min_length": 0, "num_beams": 1, "num_return_sequences": 1, "do_sample": False, "top_k": 1,
                   "top_p": 1.0, "temperature": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "early_stopping": True,
                   "past_present_share_buffer": False},
    }
    return json.dumps(whole, indent=2) + "\n"


def certify_genai(folder: Path, module: Any, graph: Graph, arguments: Sequence[str], whole: Sequence[Input], dtype: str) -> dict[str, Any]:
    """The decoder against the whole PyTorch module: a prompt and then token by token, rows padded on the right."""
    (rtol, atol), manifest = TOLERANCES[dtype], read(folder)
    found = Findings(chooses=dtype != "float32" and chooses(graph))
    artifact = open(folder)
    tokens = next(x for x in whole if x.dtype == "int64" and len(x.shape) == 2)
    names = [d.name for d in tokens.dimensions]
    cases = [Case({names[0]: rows, names[1]: length}, False, way=f"a prompt of {prompt}")  # type: ignore[dict-item]
             for rows, length, prompt in ((1, 1, 1), (1, 9, 4), (3, 9, 5), (3, 7, 7))]
    for k, case in enumerate(cases):
        rows, length = case.sizes.values()
        ids = random_inputs(_only(manifest, tokens), case.sizes, k)[tokens.name]
        prompts = np.minimum(length, 1 + (np.arange(rows) + int(case.way.split()[-1]) - 1) % length)
        made = reference(module, arguments, {tokens.name: ids}, _told(manifest, graph))
        want = {LOGITS: next(iter(made.values()))}
        found.add(case, {LOGITS: _decode(artifact, ids, prompts, want[LOGITS].shape[-1])}, want, rtol, atol)
    differences = found.differences()
    return {"status": "failed" if differences else "passed", "against": "PyTorch float32, whole sequences", "on": artifact.provider,
            "cases": len(cases), "rtol": rtol, "atol": atol, **found.worst, "largest": str(cases[-1]),
            **({"differences": differences[:20]} if differences else {})}


def _only(manifest: Manifest, tokens: Input) -> Manifest:
    return replace(manifest, form=FULL, inputs=(tokens,))


def _told(manifest: Manifest, graph: Graph) -> Manifest:
    return replace(manifest, outputs=tuple(Output(n, "float32", tuple(map(str, graph.root.type(v).shape))) for n, v in graph.root.outputs))


def whole_logits(artifact: Any, ids: np.ndarray) -> dict[str, np.ndarray]:
    """The logits of whole sequences, in one run."""
    vocabulary = next(x for x in artifact.outputs if x.name == LOGITS).shape[-1]
    return {LOGITS: _decode(artifact, ids, np.full(len(ids), ids.shape[1]), vocabulary)}


def _decode(artifact: Any, ids: np.ndarray, prompts: np.ndarray, vocabulary: int) -> np.ndarray:
    """Logits of every position: the prompts, filled up on the right, at once, then one token of each row at a time."""
    rows, length = ids.shape
    out = np.zeros((rows, length, vocabulary), np.float32)
    kind = np.float16 if artifact.inputs[-1].dtype == "float16" else np.float32
    past = {x.name: np.zeros([rows, x.shape[1], 0, x.shape[3]], kind) for x in artifact.inputs if x.name.startswith("past_")}
    size, done = int(prompts.max()), prompts.copy()
    mask = (np.arange(size) < prompts[:, None]).astype(np.int64)
    chunk, at = ids[:, :size], np.maximum(np.cumsum(mask, 1) - 1, 0)
    fresh = mask
    while True:
        made = artifact(**{IDS: chunk, MASK: mask, POSITIONS: at}, **past)
        for row in range(rows):
            for k in np.flatnonzero(fresh[row]):
                out[row, at[row, k]] = made[LOGITS][row, k]
        past = {name: made[name.replace("past_key_values", "present")] for name in past}
        if (done >= length).all():
            return out
        fresh = (done < length).astype(np.int64)[:, None]
        at = np.minimum(done, length - 1)[:, None]
        chunk, mask = ids[np.arange(rows)[:, None], at], np.concatenate([mask, fresh], 1)
        done = done + fresh[:, 0]
