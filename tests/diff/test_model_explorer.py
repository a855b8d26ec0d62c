"""`nnspec diff --model-explorer`: files of the form that Model Explorer publishes, with every edge and every partner in its place."""

import dataclasses
import importlib.util
import json
import sys
import typing
from pathlib import Path

import pytest
from nnspec.diff.formats.model_explorer import FILES, GROUP

from .convertible import DEEPER, GATED, GQA, PLAIN, RENAMED, WINDOWED, put
from .test_commands import files, run  # noqa: F401
from .test_git import repo  # noqa: F401

# Keys of the interfaces in input_graph.ts, types.ts and sync_navigation.ts; those that must be there first.
PAIR = {"key": str, "value": str}
METADATA = {"id": str, "attrs": [PAIR]}
NODE = {"id": str, "label": str, "namespace": str, "attrs": [PAIR], "inputsMetadata": [METADATA], "outputsMetadata": [METADATA],
        "incomingEdges": [{"sourceNodeId": str, "sourceNodeOutputId": str, "targetNodeInputId": str}], "style": {"backgroundColor": str}}
COLLECTION = {"label": str, "graphs": [{"id": str, "nodes": [NODE], "groupNodeAttributes": {...: {...: str}}}]}
SYNC = {"type": str, "mappingEntries": [{"leftNodeIds": [str], "rightNodeIds": [str]}], "disableMappingFallback": bool,
        "showDiffHighlights": bool}
NEEDED = {"id", "label", "namespace", "nodes", "graphs", "key", "value", "sourceNodeId", "sourceNodeOutputId", "targetNodeInputId",
          "leftNodeIds", "rightNodeIds", "type"}


def typed(value, form, at="$"):
    if isinstance(form, list):
        assert isinstance(value, list), at
        for k, x in enumerate(value):
            typed(x, form[0], f"{at}[{k}]")
    elif isinstance(form, dict):
        free = form.get(...)
        assert isinstance(value, dict) and (free or (value.keys() <= form.keys() and NEEDED & form.keys() <= value.keys())), (at, value)
        for k, x in value.items():
            typed(x, free or form[k], f"{at}.{k}")
    else:
        assert type(value) is form, (at, value)


@pytest.fixture
def made(files, capsys, tmp_path):  # noqa: F811
    def go(base, head):
        files(a=base, b=head)
        assert run(capsys, "diff", "a.yaml", "b.yaml", "--model-explorer", "out/me")[0] == 0
        return tuple(json.loads((tmp_path / "out" / "me" / name).read_text()) for name in FILES)
    return go


def nodes(collection):
    (graph,) = collection["graphs"]
    return {n["id"]: n for n in graph["nodes"]}


def groups(collection):
    """Ids of all groups that the namespaces make, as the visualizer names them."""
    spaces = {n["namespace"] for n in nodes(collection).values() if n["namespace"]}
    return {"/".join(s.split("/")[:k]) + GROUP for s in spaces for k in range(1, s.count("/") + 2)}


PAIRS = {"kv heads": (PLAIN, GQA), "ffn": (PLAIN, GATED), "deeper": (PLAIN, DEEPER), "renamed": (PLAIN, RENAMED),
         "windows": (PLAIN, WINDOWED), "windows back": (WINDOWED, PLAIN), "same": (PLAIN, PLAIN)}


@pytest.mark.parametrize("name", PAIRS)
def test_files_are_of_the_published_form(name, made):
    base, head, sync = made(*PAIRS[name])
    for side in (base, head):
        typed(side, COLLECTION)
        found = nodes(side)
        assert len(found) == len(side["graphs"][0]["nodes"])                      # ids are unique
        assert not {n["id"] + GROUP for n in found.values()} & groups(side)
        read = set()
        for n in found.values():
            for e in n.get("incomingEdges", ()):
                assert e["sourceNodeId"] in found
                read.add(e["sourceNodeId"])
        assert all(n.get("incomingEdges") for i, n in found.items() if not i.startswith("GraphInputs/"))     # nothing hangs in the air
        assert all(i in read for i in found if not i.startswith("GraphOutputs/"))
        spaces = side["graphs"][0]["groupNodeAttributes"]
        assert {s + GROUP for s in spaces} | {"GraphInputs" + GROUP, "GraphOutputs" + GROUP} >= groups(side)
    typed(sync, SYNC)
    assert base["label"] != head["label"] and base["graphs"][0]["id"] != head["graphs"][0]["id"]   # also where both have one name
    for key, side in (("leftNodeIds", base), ("rightNodeIds", head)):
        listed = [i for e in sync["mappingEntries"] for i in e[key]]
        assert len(listed) == len(set(listed)), "a node stands in one entry alone"
        assert all(e["leftNodeIds"] and e["rightNodeIds"] for e in sync["mappingEntries"])
        assert set(listed) <= nodes(side).keys() | {i + GROUP for i in side["graphs"][0]["groupNodeAttributes"]} | groups(side)


def lone(base, head, sync):
    """What would have a border: nodes of either side without a partner."""
    out = []
    for key, side in (("leftNodeIds", base), ("rightNodeIds", head)):
        paired = {i for e in sync["mappingEntries"] for i in e[key]}
        out.append(sorted({*nodes(side), *groups(side)} - paired))
    return out


def test_what_came_or_went_has_no_partner(made):
    assert lone(*made(PLAIN, PLAIN)) == [[], []]
    assert lone(*made(PLAIN, GQA)) == [[], []] and lone(*made(PLAIN, DEEPER)) == [[], []]
    base, head, sync = made(PLAIN, RENAMED)
    assert {"leftNodeIds": ["embed"], "rightNodeIds": ["tokens_embed"]} in sync["mappingEntries"] and lone(base, head, sync) == [[], []]
    more = put(PLAIN, ("logits: {op: linear, in: norm", "more: {op: tanh, in: norm}\n  logits: {op: linear, in: more"))
    gone, come = lone(*made(more, PLAIN))
    assert (gone, come) == (["more"], [])
    base, head, sync = made(PLAIN, GATED)
    assert lone(base, head, sync) == [[], ["layers/ffn/gate", "layers/ffn/product"]]
    for i, mark in (("layers/ffn/product", "added"), ("layers/ffn/active", "changed")):
        assert {"key": mark, "value": "layers.ffn"} in nodes(head)[i]["attrs"] and nodes(head)[i]["style"]


def test_one_body_that_became_two_is_partner_of_both(made):
    base, head, sync = made(PLAIN, WINDOWED)
    entry = next(e for e in sync["mappingEntries"] if "layers/attention/query" in e["leftNodeIds"])
    assert entry["rightNodeIds"] == ["layers/[0,2]/attention/query", "layers/[1,3]/attention/query"]
    found = nodes(head)
    first, second = (found[f"layers/{k}/attention_norm"] for k in ("[0,2]", "[1,3]"))
    assert [e["sourceNodeId"] for e in first["incomingEdges"]] == ["placed/out"]
    assert [e["sourceNodeId"] for e in second["incomingEdges"]] == ["layers/[0,2]/out"]
    assert [e["sourceNodeId"] for e in found["norm"]["incomingEdges"]] == ["layers/[1,3]/out"]
    attended = found["layers/[1,3]/attention/attended"]
    assert attended["style"] and any(a["key"] == "changed" and "pattern" in a["value"] for a in attended["attrs"])
    assert "style" not in found["layers/[0,2]/attention/attended"]


def test_edges_go_to_the_ops_inside_blocks(made):
    base, _, _ = made(PLAIN, GQA)
    found = nodes(base)
    into = lambda i: {m["attrs"][0]["value"]: e["sourceNodeId"] for m in found[i]["inputsMetadata"]  # noqa: E731
                      for e in found[i]["incomingEdges"] if e["targetNodeInputId"] == m["id"]}
    assert into("embed") == {"in": "GraphInputs/tokens"}
    assert into("layers/attention/query") == {"in": "layers/attention_norm"}
    assert into("layers/attention/attended").keys() >= {"query", "key", "value"}
    assert into("logits")["weight"] == "embed"                                    # tied
    assert found["GraphOutputs/logits"]["incomingEdges"][0]["sourceNodeId"] == "logits"
    shape = next(a["value"] for a in found["logits"]["outputsMetadata"][0]["attrs"] if a["key"] == "tensor_shape")
    assert shape == "float[B, S, 101]"


@pytest.mark.parametrize("name", ["additive-seq2seq", "mixtral-8x7b", "t5-small", "whisper-tiny"])
def test_models_of_the_library_are_drawn_whole(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "diff", name, name, "--model-explorer", "me")[0] == 0
    base, head, sync = (json.loads((tmp_path / "me" / f).read_text()) for f in FILES)
    found = nodes(base)
    assert found == nodes(head) and lone(base, head, sync) == [[], []]
    assert {e["sourceNodeId"] for n in found.values() for e in n.get("incomingEdges", ())} <= found.keys()
    assert {i for i in found if i.startswith("GraphInputs/")} <= {e["sourceNodeId"] for n in found.values()
                                                                    for e in n.get("incomingEdges", ())}


def test_the_published_classes_take_them(made):
    spec = importlib.util.find_spec("model_explorer")
    if spec is None:
        pytest.skip("ai-edge-model-explorer is not installed: its classes are compared where it is")
    path = Path(spec.submodule_search_locations[0]) / "graph_builder.py"
    loader = importlib.util.spec_from_file_location("published_graph_builder", path)
    module = importlib.util.module_from_spec(loader)
    sys.modules["published_graph_builder"] = module
    loader.loader.exec_module(module)

    def build(kind, value):
        """The dataclass of a value; a key that it does not have is a TypeError."""
        hints = typing.get_type_hints(kind, vars(module))
        assert dataclasses.is_dataclass(kind)
        made_ = {}
        for k, v in value.items():
            inner = [t for t in (hints[k], *typing.get_args(hints[k])) if dataclasses.is_dataclass(t)] if k in hints else []
            made_[k] = [build(inner[0], x) for x in v] if inner and isinstance(v, list) else build(inner[0], v) if inner and isinstance(
                v, dict) else v
        return kind(**made_)

    base, head, _ = made(PLAIN, GATED)
    for side in (base, head):
        found = build(module.GraphCollection, side)
        assert len(found.graphs[0].nodes) == len(nodes(side))


def test_bad_folders_and_lock_files(files, capsys, tmp_path):  # noqa: F811
    files(a=PLAIN, broken="graph: {x: {op: foo")
    run(capsys, "lock", "a.yaml")
    (tmp_path / "file").write_text("x")
    for given, word in ((("a.yaml", "a.yaml", "--model-explorer", "file"), "cannot-write"),
                        (("a.yaml", "a.nnspec.lock", "--model-explorer", "me"), "bad-lock"),
                        (("a.yaml", "broken.yaml", "--model-explorer", "me"), "never closed"),
                        (("--git", "HEAD", "--model-explorer", "me"), "bad-command")):
        code, _, err = run(capsys, "diff", *given)
        assert code == 2 and word in err and not (tmp_path / "me").exists()
