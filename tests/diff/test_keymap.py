"""The key map as a file: what `--write-keymap` writes is what `migrate --keymap` follows, also as changed by hand."""

import json

import pytest
import torch
import yaml
from nnspec.diff.migration.keymap import keymap_data, keymap_text, recipe_data
from nnspec.diff.migration.keymap_read import mapped
from nnspec.diff.migration.migrate import keyed
from safetensors.torch import load_file

from .convertible import APPROX, EXACT, GATED, GQA, PLAIN, REFUSED, RENAMED, SILENT, outputs, put, saved, weights
from .pairs import compiled
from .test_commands import files, run  # noqa: F401

ALL = EXACT | APPROX | REFUSED | SILENT
HIDDEN = [f"layers.{i}.ffn" for i in range(4)]


@pytest.mark.parametrize("ending", ["yaml", "json"])
@pytest.mark.parametrize("name", ALL)
def test_a_key_map_reads_back_as_it_was_written(name, ending, tmp_path):
    base, head = (compiled(t) for t in ALL[name])
    keys, report = keyed(base, head, ("a", "b"))
    path = tmp_path / f"map.{ending}"
    text = keymap_text(keys, report, path)
    path.write_text(text)
    assert (json.loads(text) if ending == "json" else yaml.safe_load(text)) == keymap_data(keys, report)
    assert mapped(keys, report, path) is keys                       # nothing is otherwise, so what is verified is what was found
    other = put(text, (", kind: exact", ", kind: approx")) if ending == "yaml" and ", kind: exact" in text else None
    if other:
        path.write_text(other)
        assert mapped(keys, report, path).by == "the key map map.yaml"
    again = keymap_text(*keyed(*(compiled(t) for t in ALL[name]), ("c", "d")), path)
    assert again == text                                            # whatever the sides are called


@pytest.fixture
def go(files, capsys, tmp_path):  # noqa: F811
    def start(base, head, *more, text=None):
        files(a=base, b=head)
        (tmp_path / "new.safetensors").unlink(missing_ok=True)
        saved(tmp_path / "old.safetensors", base)
        if text is not None:
            (tmp_path / "map.yaml").write_text(text)
            more = (*more, "--keymap", "map.yaml")
        code, said, err = run(capsys, "migrate", "old.safetensors", "--from", "a.yaml", "--to", "b.yaml", "-o", "new.safetensors", *more)
        new = tmp_path / "new.safetensors"
        assert code == 0 or not new.exists()
        return code, said + err, load_file(new) if new.exists() else None
    return start


def test_the_file_of_diff_is_followed_by_migrate_and_map(files, capsys, tmp_path, go):  # noqa: F811
    files(a=PLAIN, b=RENAMED)
    assert run(capsys, "diff", "a.yaml", "b.yaml", "--write-keymap", "map.yaml")[0] == 0
    text = (tmp_path / "map.yaml").read_text()
    assert yaml.safe_load(text)["renames"] == {"embed": "tokens_embed"} and "\n  tokens_embed.weight: embed.weight\n" in text
    found = json.loads(run(capsys, "diff", "a.yaml", "b.yaml", "--map", "map.yaml", "-f", "json")[1])
    assert found["edits"][0]["evidence"] == "declared"
    code, said, new = go(PLAIN, RENAMED, text=text)
    assert code == 0 and "the same function" in said
    torch.testing.assert_close(outputs(RENAMED, new), outputs(PLAIN, weights(PLAIN)))


def test_what_nothing_led_to_is_made_as_the_file_says(go):
    lines = [x for n in HIDDEN for x in (f"{n}.gate.weight: {{op: cut-rows, of: {n}.up.weight}}",
                                        f"{n}.up.weight: {{op: rows, rows: [[16, 36]], of: {n}.up.weight}}",
                                        f"{n}.down.weight: {{op: cut-columns, kind: approx, of: {n}.down.weight}}")]
    assert go(PLAIN, GATED)[0] == 1
    code, said, new = go(PLAIN, GATED, text="keymap: 1\ntensors:\n  " + "\n  ".join(lines) + "\n")
    old = weights(PLAIN)
    assert code == 0 and "the key map map.yaml: not verified" in said, said
    torch.testing.assert_close(new["layers.2.ffn.gate.weight"], old["layers.2.ffn.up.weight"][:20], rtol=0, atol=0)
    torch.testing.assert_close(new["layers.3.ffn.up.weight"], old["layers.3.ffn.up.weight"][16:], rtol=0, atol=0)
    torch.testing.assert_close(new["layers.0.ffn.down.weight"], old["layers.0.ffn.down.weight"][:, :20], rtol=0, atol=0)
    code, said, _ = go(PLAIN, GATED, text="keymap: 1\ntensors:\n  " + "\n  ".join(lines[1:]) + "\n")
    assert code == 1 and "layers.0.ffn.gate.weight" in said         # one is still missing


def test_a_wrong_line_is_found_where_the_function_must_be_kept(go):
    base, head = EXACT["more words"]
    right = "keymap: 1\ntensors:\n  embed.weight: {op: pad-rows, of: embed.weight}\n  norm.bias: norm.bias\n"
    code, said, _ = go(base, head, text=right)
    assert code == 0 and "the same function" in said, said
    code, said, _ = go(base, head, text=right.replace("norm.bias: norm.bias", "norm.bias: norm.weight"))
    assert code == 1 and "NOT the same function" in said and "as a file says" in said


def test_means_and_nested_steps(go):
    text = ("keymap: 1\ntensors:\n  layers.1.attention.key.weight:\n    op: mean-rows\n    kind: approx\n"
            "    of: layers.1.attention.key.weight\n    columns: [[[0, 8]], [[8, 12], [0, 4]]]\n"
            "  layers.2.attention.key.bias: {op: cut-rows, of: {op: pad-rows, shape: [31], of: layers.2.attention.key.bias}}\n"
            "  layers.3.attention.key.bias: {op: fill, value: 0.5}\n")
    code, _, new = go(PLAIN, GQA, text=text)
    old = weights(PLAIN)
    key = old["layers.1.attention.key.weight"]
    want = (key[:8] + torch.cat([key[8:12], key[:4]])) / 2
    assert code == 0
    torch.testing.assert_close(new["layers.1.attention.key.weight"], want)
    torch.testing.assert_close(new["layers.2.attention.key.bias"], old["layers.2.attention.key.bias"][:8], rtol=0, atol=0)
    assert new["layers.3.attention.key.bias"].tolist() == [0.5] * 8


@pytest.mark.parametrize("text, word", [
    ("[1]", "a key map is a mapping"), ("tensors: {}", "version 1"), ("keymap: 2", "version 1"),
    ("keymap: 1\ntensor: {}", "no key `tensor`"),
    ("keymap: 1\ntensors: [a]", "is a mapping"), ("keymap: 1\nhead: {identity: x}", "another HEAD"),
    ("keymap: 1\ntensors: {norm.wieght: norm.bias}", "did you mean `norm.weight`"),
    ("keymap: 1\ntensors: {norm.weight: norm.bais}", "did you mean `norm.bias`"),
    ("keymap: 1\ntensors: {norm.weight: embed.weight}", "makes it [101, 24]"),
    ("keymap: 1\ntensors: {norm.weight: [norm.bias]}", "by a mapping, not a list"),
    ("keymap: 1\ntensors: {norm.weight: {op: explode, of: norm.bias}}", "`explode` is no `op`"),
    ("keymap: 1\ntensors: {norm.weight: {of: norm.bias}}", "its `op` as a word"),
    ("keymap: 1\ntensors: {norm.weight: {op: copy, off: norm.bias}}", "did you mean `of`"),
    ("keymap: 1\ntensors: {norm.weight: {op: copy}}", "made of nothing"),
    ("keymap: 1\ntensors: {norm.weight: {op: copy, of: embed.weight}}", "its parts are [101, 24]"),
    ("keymap: 1\ntensors: {norm.weight: {op: rows, rows: [[0, 25]], of: norm.bias}}", "of the 24 that there are"),
    ("keymap: 1\ntensors: {norm.weight: {op: rows, rows: [[0, 23]], of: norm.bias}}", "are 23 rows"),
    ("keymap: 1\ntensors: {norm.weight: {op: rows, rows: 7, of: norm.bias}}", "ranges of rows"),
    ("keymap: 1\ntensors: {norm.weight: {op: rows, of: norm.bias}}", "ranges of rows"),
    ("keymap: 1\ntensors: {norm.weight: {op: mean-rows, columns: [], of: norm.bias}}", "ranges of rows"),
    ("keymap: 1\ntensors: {norm.weight: {op: copy, rows: [[0, 24]], of: norm.bias}}", "takes no `rows`"),
    ("keymap: 1\ntensors: {norm.weight: {op: cut-rows, of: {op: fill, shape: [99999999999999]}}}", "more numbers than both"),
    ("keymap: 1\ntensors: {norm.weight: {op: cut-rows, of: {op: fill}}}", "has the `shape`"),
    ("keymap: 1\ntensors: {norm.weight: {op: cut-columns, of: norm.bias}}", "cannot make"),
    ("keymap: 1\ntensors: {norm.weight: {op: rows, rows: [[0, 24]], of: [norm.bias, embed.weight]}}", "rows of several shapes"),
    ("keymap: 1\ntensors: {norm.weight: {op: fill, value: much}}", "is a number"),
    ("keymap: 1\ntensors: {norm.weight: {op: copy, kind: fine, of: norm.bias}}", "`fine` is no `kind`")])
def test_a_bad_key_map(go, text, word):
    code, said, new = go(PLAIN, RENAMED, text=text + "\n")
    assert code == 2 and new is None and "error[bad-keymap]" in said and word in " ".join(said.split()) and "map.yaml:" in said, said


def test_nothing_is_written_where_nothing_is_compared(files, capsys, tmp_path):  # noqa: F811
    files(a=PLAIN, broken="graph: {x: {op: foo")
    run(capsys, "lock", "a.yaml")
    for given in (("a.yaml", "broken.yaml"), ("a.nnspec.lock", "a.yaml"), ("--git", "HEAD")):
        code, _, err = run(capsys, "diff", *given, "--write-keymap", "map.yaml")
        assert code == 2 and not (tmp_path / "map.yaml").exists() and "error[" in err, given
    code, _, err = run(capsys, "diff", "a.yaml", "a.yaml", "--write-keymap", "nowhere/map.yaml")
    assert code == 2 and "cannot-write" in err
    assert run(capsys, "diff", "a.yaml", "a.yaml", "--write-keymap", "map.yaml")[0] == 0
    assert yaml.safe_load((tmp_path / "map.yaml").read_text())["kind"] == "same"
    assert recipe_data(keyed(compiled(PLAIN), compiled(PLAIN), ("a", "b"))[0].recipes["norm.bias"]) == "norm.bias"
