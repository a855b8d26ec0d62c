import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from nnspec import schema
from nnspec.backends.torch import initial
from nnspec.lang.source import Source
from nnspec.lang.structure import INITS, definitions
from nnspec.lang.tree import plain
from nnspec.ops.registry import OPS
from nnspec.stages.parse import parse, read_source
from torch import nn

SPECS = Path(__file__).parent.parent / "specs"
FILES = [p for p in sorted(SPECS.glob("*/*.yaml")) if p.parent.name != "configs"]
CONFIGS = [p for p in sorted((SPECS / "configs").glob("*.yaml")) if p.stem not in ("activations", "harmless")]
SCHEMA = schema.generate()
VALID = Draft202012Validator(SCHEMA)


def errors(text, how=schema.typed):
    return [list(e.absolute_path) for e in VALID.iter_errors(how(parse(Source("spec.yaml", text))))]


def test_it_is_a_schema():
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(schema.text()) == SCHEMA


def test_the_file_is_fresh():
    held = (SPECS / "schema.json").read_text(encoding="utf-8")
    assert held == schema.text(), "run: python -m nnspec.schema > specs/schema.json"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_spec_is_valid_as_typed_by_an_editor_and_as_text(file):
    source = read_source(file)
    assert source.text.startswith("# yaml-language-server: $schema=../schema.json\n")
    tree = parse(source)
    for how in (schema.typed, plain):
        assert [(list(e.absolute_path), e.message) for e in VALID.iter_errors(how(tree))] == []


@pytest.mark.parametrize("file", CONFIGS, ids=lambda f: f.stem)
def test_every_file_of_config_keys_is_valid(file):
    for how in (schema.typed, plain):
        whole = {"graph": {"n": {"op": "tanh"}}, "outputs": "n", "checkpoint": {"config": how(parse(read_source(file)))}}
        assert [(list(e.absolute_path), e.message) for e in VALID.iter_errors(whole)] == []


NODE = "graph: {{n: {}}}\noutputs: n\n"


@pytest.mark.parametrize("node", [
    "{op: linear, in: x, width: 8, bias: false, init: {normal: 0.02}}", "{op: linear, in: x, width: heads * 4, bias: shared}",
    "{op: linear, in: x, width: '8', bias: 'false'}", "{op: sum, in: x, axis: [0, -1]}", "{op: sum, in: x, axis: -1}",
    "{op: add, in: [x, 1, {op: tanh, in: x}]}", "{op: constant, value: [[1, 2], [0.5, true]]}", "{op: cast, in: x, to: bool}",
    '{op: rearrange, in: x, as: "b (h d) -> b h d", h: 3}', "{op: activate, in: x, function: activation}",
    "{block: anything, of: {mine: 1}}", "{repeat: 3, op: linear, in: x, width: 8, share: 0, pattern: [{width: 9}, {times: 2}]}",
    "{scan: step, each: {x: y}, carry: {s: 0}}",
])
@pytest.mark.parametrize("how", [schema.typed, plain])
def test_nodes_that_are_right(node, how):
    assert errors(NODE.format(node), how) == []


@pytest.mark.parametrize("node, path", [
    ("{op: liner, in: x}", ["op"]), ("{op: linear, in: x, widht: 8}", []), ("{op: linear, in: x, width: [8]}", ["width"]),
    ("{op: linear, in: x, width: 0.5}", ["width"]), ("{op: relu, in: x, width: 8}", []),
    ("{op: add, in: [x, {op: tahn}]}", ["in", 1, "op"]),
    ("{op: cast, in: x, to: 3}", ["to"]), ("{op: linear, in: x, init: 3}", ["init"]), ("{in: x}", []),
    ("{op: relu, block: b}", []),
    ("{block: b, norm: {op: rms_norm, epss: 1}}", ["norm"]), ("{op: relu, share: 1}", []),
])
def test_nodes_that_are_wrong(node, path):
    assert ["graph", "n", *path] in errors(NODE.format(node))


@pytest.mark.parametrize("text, wrong", [
    ("base: a.yaml\nset: {sizes.width: 8}\nremove: [graph.a]\nadd: {graph.b: {op: relu}}", False), ("set: {a: 1}", True),
    ("base: a.yaml\nset: {a b: 1}", True), ("base: a.yaml\nadd: [a]", True), ("sizes: {a: 1}", True),
    ("blocks: {b: {graph: {x: {op: relu, in: y}}}}", False), ("graph: {x: {op: relu}}", True),
    ("graph: {x: {op: relu}}\noutputs: x\ninputs:\n  x: float32[B]", True),
    ("graph: {x: {op: relu}}\noutputs: x\ninputs:\n  x: float[B]", False),
    ("blocks: {b: {settings: {a: int = 3, b: one of x | y = x, c: optional float}, graph: {x: {op: relu}}}}", False),
    ("blocks: {b: {settings: {a: integer}, graph: {x: {op: relu}}}}", True),
    ("blocks: {b: {slots: {a: 'x -> y'}, graph: {x: {op: relu}}}}", True),
    ("blocks: {}\nx-mine: 1", False), ("blocks: {}\nmine: 1", True),
])
def test_files(text, wrong):
    assert bool(errors(text)) == wrong


def test_every_op_is_described():
    assert SCHEMA["$defs"]["node"]["properties"]["op"]["enum"] == list(OPS)
    for name, cls in OPS.items():
        found = SCHEMA["$defs"][f"op_{name}"]
        about, signature = found["description"].split("\n\n")
        assert about and signature == cls.signature
        assert set(cls.ports()) <= set(found["properties"])
        named = {f.metadata["key"] or n for n, f in cls.attributes().items() if f.metadata and f.metadata["kind"] != "open"}
        assert named <= set(found["properties"])
        assert all(p.get("description") for k, p in found["properties"].items() if k != "init")


def test_every_key_of_the_language_is_described():
    bare = {"op", "block", "slot"}
    for name in ("model", "block", "node"):
        for key, found in definitions()[name]["properties"].items():
            about = found.get("description") or definitions()[found["$ref"].rpartition("/")[2]].get("description")
            assert about or key in bare, (name, key)


@pytest.mark.parametrize("name", INITS)
def test_every_initialisation_of_the_language_has_a_function_of_torch(name):
    function, _ = initial.fill(name if name in ("zeros", "ones") else {name: 0.5}, 3)
    assert hasattr(nn.init, function)


def test_typed_scalars():
    tree = parse(Source("a", "[1, -2, 1e-5, .5, true, 'true', '1', no, ~, 012x, a b]"))
    assert schema.typed(tree) == [1, -2, 1e-5, 0.5, True, "true", "1", "no", None, "012x", "a b"]
