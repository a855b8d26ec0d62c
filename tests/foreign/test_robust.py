"""Trees come back from their text as they were, and no config, however odd, is a traceback."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nnspec.foreign.config import tidy
from nnspec.foreign.write import flow, value
from nnspec.lang.diagnostic import Diagnostics
from nnspec.lang.source import Source, Span
from nnspec.lang.tree import Entry, Mapping, Scalar, Sequence, plain
from nnspec.model import load
from nnspec.stages.parse import parse

SPAN = Span(Source("made", ""), 0, 0)
WORDS = st.sampled_from(["a", "4 * width", "-1", "layers.{i}.x", "i (s o) -> s o i", "a: b", "x #y", "", "~", "[a, b]", "no: ", "- a", "*x",
                         "1e-5", "it's", 'say "x"', "\u2028", "tab\there", "{}", "Of A, of B 2019", "a:", "?", "@", "`", "%", "|", "&a b"])
NAMES = st.sampled_from(["a", "layers.{i}.attention.[query, key].bias", "b c", "x-y", "*.mask", "on", "embed.weight", "a | b.c"])


def tree(data, inline):
    if isinstance(data, dict):
        return Mapping(tuple(Entry(Scalar(k, SPAN), tree(v, inline)) for k, v in data.items()), SPAN, inline)
    if isinstance(data, list):
        return Sequence(tuple(tree(v, inline) for v in data), SPAN, inline)
    return Scalar(data, SPAN, False)


@given(st.dictionaries(NAMES, st.recursive(WORDS, lambda x: st.lists(x, max_size=3) | st.dictionaries(NAMES, x, max_size=3), max_leaves=8)),
       st.booleans())
def test_trees_are_read_as_they_were_written(data, inline):
    made = tree(data, inline)
    assert plain(parse(Source("made", f"whole: {flow(made)}\n"))) == {"whole": plain(made)}
    assert plain(parse(Source("made", f"whole:{value(made, 0)}\n"))) == {"whole": plain(made)}


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_short_numbers_are_the_same_numbers(number):
    assert json.loads(tidy(json.dumps(number))) == number


ODD = st.sampled_from([None, True, False, 0, -1, 3, 1.5, 1e300, 10**400, "", "x", "3", "null", "a\nb: c", [], [1], [1, 2], ["x"], {},
                       {"a": {"b": 1}}, [[1]], {"rope_type": "yarn"}, {"rope_type": "llama3", "factor": 8},
                       {"type": "linear", "factor": "2"}])
CONFIG = {"model_type": "llama", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 20}
KEYS = st.sampled_from([*CONFIG, "head_dim", "rope_scaling", "rope_theta", "rope_parameters", "hidden_act", "attention_bias",
                        "architectures", "tie_word_embeddings", "surprise", "max_position_embeddings", "torch_dtype", "a.b", ""])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, ODD, max_size=2))
def test_odd_configs_are_read_or_refused(tmp_path, changes):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    try:
        load(tmp_path)
    except Diagnostics as found:
        assert all(d.headline and (d.labels or d.helps) for d in found.items), found


def test_a_name_is_no_way_into_the_spec(tmp_path):
    """What a config says reaches the text as numbers and known words alone, and a folder's name as one text."""
    from nnspec import import_checkpoint
    folder = tmp_path / "a: b #c"
    folder.mkdir()
    config = CONFIG | {"architectures": ["LlamaForCausalLM"], "rope_theta": 100.0}
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "out.yaml").write_text(import_checkpoint(folder))
    assert load(tmp_path / "out.yaml").name == "a: b #c"
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["X\nname: evil"]}))
    with pytest.raises(Diagnostics):
        import_checkpoint(folder)
