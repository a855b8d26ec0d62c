"""The family that `specs/FAMILIES.md` writes down is one: it computes what transformers computes."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent.parent / "specs" / "FAMILIES.md").read_text()


def family(folder, name):
    written = dict(re.findall(r"^```yaml file=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    (folder / name).write_text(written[name])
    return folder / name


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 4, "tie_word_embeddings": False}], ids=["tied", "window"])
def test_the_worked_example_computes_the_same(changes, tmp_path):
    pytest.importorskip("transformers")
    from families.harness import Family
    Family("Starcoder2ForCausalLM", {
        "vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 36, "max_position_embeddings": 64, **changes}, family=family(tmp_path, "starcoder2.yaml")).check(tmp_path)


def test_the_variant_computes_the_same(tmp_path):
    pytest.importorskip("transformers")
    from families.harness import Family
    Family("Phi3ForCausalLM", {
        "vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
        "intermediate_size": 36, "max_position_embeddings": 64}, family=family(tmp_path, "phi3.yaml")).check(tmp_path)


def test_files_that_it_names_are_there():
    for name in re.findall(r"`((?:specs|tests)/[\w/.]+)`", PAGE):
        assert (Path(__file__).parent.parent.parent / name).exists(), name
