"""Configs as public checkpoints of encoders and encoder-decoders have them, old keys and all: the counts are those of their files."""

import json

import nnspec
import pytest
from nnspec.ir.parameters import count

BERT = {"attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 30522}
DISTILBERT = {"activation": "gelu", "attention_dropout": 0.1, "dim": 768, "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02,
              "max_position_embeddings": 512, "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
              "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": 30522}
T5 = {"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0,
      "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-6,
      "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32,
      "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}}, "vocab_size": 32128}
BART = {"activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False, "add_final_layer_norm": False,
        "attention_dropout": 0.1, "bos_token_id": 0, "classif_dropout": 0.1, "classifier_dropout": 0.0, "d_model": 768,
        "decoder_attention_heads": 12, "decoder_ffn_dim": 3072, "decoder_layerdrop": 0.0, "decoder_layers": 6,
        "decoder_start_token_id": 2, "dropout": 0.1, "early_stopping": True, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
        "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
        "gradient_checkpointing": False, "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "init_std": 0.02,
        "is_encoder_decoder": True, "max_position_embeddings": 1024, "no_repeat_ngram_size": 3, "normalize_before": False,
        "normalize_embedding": True, "num_beams": 4, "num_hidden_layers": 6, "pad_token_id": 1, "scale_embedding": False,
        "use_cache": True, "vocab_size": 50265}
MARIAN = {"activation_dropout": 0.0, "activation_function": "swish", "architectures": ["MarianMTModel"], "bad_words_ids": [[58100]],
          "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_vocab_size": 58101, "encoder_attention_heads": 8,
          "encoder_ffn_dim": 2048, "max_length": 512, "max_position_embeddings": 512, "normalize_embedding": False,
          "pad_token_id": 58100, "scale_embedding": True, "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
          "vocab_size": 58101}
VIT = {"architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu",
       "hidden_dropout_prob": 0.0, "hidden_size": 768, "id2label": {str(i): f"class {i}" for i in range(1000)}, "image_size": 224,
       "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "num_attention_heads": 12, "num_channels": 3,
       "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": True}
WHISPER = {"activation_dropout": 0.0, "activation_function": "gelu", "architectures": ["WhisperForConditionalGeneration"],
           "begin_suppress_tokens": [220, 50257], "d_model": 384, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536,
           "decoder_layers": 4, "dropout": 0.0, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536, "encoder_layers": 4,
           "forced_decoder_ids": [[1, 50259], [2, 50359], [3, 50363]], "max_length": 448, "max_source_positions": 1500,
           "max_target_positions": 448, "num_hidden_layers": 4, "num_mel_bins": 80, "scale_embedding": False,
           "suppress_tokens": [1, 2, 7, 8], "vocab_size": 51865}
SIX = {"encoder_layers": 6, "decoder_layers": 6, "num_hidden_layers": 6}
LARGE = {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "num_hidden_layers": 12, "encoder_ffn_dim": 4096,
         "decoder_ffn_dim": 4096, "encoder_attention_heads": 16, "decoder_attention_heads": 16}
V3 = {"d_model": 1280, "encoder_layers": 32, "decoder_layers": 32, "num_hidden_layers": 32, "encoder_ffn_dim": 5120,
      "decoder_ffn_dim": 5120, "encoder_attention_heads": 20, "decoder_attention_heads": 20, "num_mel_bins": 128, "vocab_size": 51866}
CASES = {                                             # model_type, config, parameters
    "bert-base-uncased": ("bert", BERT | {"architectures": ["BertForMaskedLM"]}, 109_514_298),
    "roberta-base": ("roberta", BERT | {"architectures": ["RobertaForMaskedLM"], "vocab_size": 50265, "max_position_embeddings": 514,
                                        "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}, 124_697_433),
    "distilbert-base-uncased": ("distilbert", DISTILBERT | {"architectures": ["DistilBertForMaskedLM"]}, 66_985_530),
    "distilbert sst-2": ("distilbert", DISTILBERT | {"architectures": ["DistilBertForSequenceClassification"], "finetuning_task": "sst-2",
                                                     "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}, 66_955_010),
    "t5-small": ("t5", T5, 60_506_624),
    "flan-t5-small": ("t5", T5 | {"d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu",
                                  "tie_word_embeddings": False}, 76_961_152),
    "bart-base": ("bart", BART | {"architectures": ["BartModel"]}, 139_420_416),
    "bart-large-cnn": ("bart", BART | LARGE | {"architectures": ["BartForConditionalGeneration"], "vocab_size": 50264,
                                               "force_bos_token_to_be_generated": True}, 406_290_432 + 50_264),
    "opus-mt-en-de": ("marian", MARIAN | SIX, 74_410_496 - 2 * 512 * 512 + 58_101),
    "vit-base-patch16-224": ("vit", VIT, 86_567_656),
    "whisper-tiny": ("whisper", WHISPER, 37_760_640),
    "whisper-large-v3": ("whisper", WHISPER | V3, 1_543_490_560),
}


@pytest.mark.parametrize("name", CASES)
def test_a_public_config_gives_the_parameters_of_its_checkpoint(name, tmp_path):
    """Those that transformers counts; we count the bias of the logits too, and not the sinusoids that Marian keeps."""
    kind, config, parameters = CASES[name]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    model = nnspec.load(tmp_path)
    assert count(model.graph) == parameters and not model.warnings
