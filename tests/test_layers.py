"""The house rules: sizes of files and functions, who may import whom, what is never imported."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "compiler").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")])
LIMIT, FUNCTION, PAGE = 400, 40, 80


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(("nnspec", *(parts[1:] if parts[0] == "compiler" else parts)))


def imports(path: Path) -> set[str]:
    """Absolute names of the modules that a file of ours imports, lazy imports counted, type-only ones not."""
    here, package = module_name(path), path.name == "__init__.py"
    found = set()
    tree = ast.parse(path.read_text())
    typing_only = {id(n) for block in ast.walk(tree) if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
                   for n in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here.split(".")
            base = base[: len(base) - node.level + package] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{target}.{a.name}" for a in node.names} | {target}
    return found


MODULES = {module_name(p): p for p in FILES}
EDGES = {name: {i for i in imports(p) if i in MODULES and i != name} for name, p in MODULES.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert text.count("\n") <= LIMIT
    long = [f"{n.name}: {n.end_lineno - n.lineno + 1} lines" for n in ast.walk(ast.parse(text))
            if isinstance(n, ast.FunctionDef) and n.end_lineno - n.lineno + 1 > FUNCTION]
    assert not long


def test_the_wheel_holds_every_package():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert {module_name(p) for p in FILES if p.name == "__init__.py"} == set(listed) - {"nnspec.specs", "nnspec.pages"}


def test_the_pipeline_is_one_page():
    assert (ROOT / "compiler" / "pipeline.py").read_text().count("\n") <= PAGE


def test_no_import_cycle():
    """A package's __init__ is the package: importing a sibling through it counts as importing the sibling."""
    graph = nx.DiGraph([(a, b) for a, bs in EDGES.items() for b in bs if not a.startswith(b + ".")])
    assert [c for c in nx.strongly_connected_components(graph) if len(c) > 1] == []


def test_stages_do_not_know_each_other():
    for name, others in EDGES.items():
        if name.startswith("nnspec.stages."):
            mine = ".".join(name.split(".")[:3])
            strangers = {o for o in others if o.startswith("nnspec.stages.") and ".".join(o.split(".")[:3]) != mine}
            assert not strangers, f"{name} imports {strangers}"


ORDER = ["lang", "ir", "ops", "stages", "backends"]


def test_layers_look_down_only():
    for name, others in EDGES.items():
        layer = name.split(".")[1] if name.count(".") else ""
        if layer in ORDER:
            above = {*ORDER[ORDER.index(layer) + 1:], "pipeline", "model", "cli", "render", "show", "artifacts", "costs", "diff", "foreign"}
            above |= {"checkpoints"} if layer != "backends" else set()
            wrong = {o for o in others if o.split(".")[1:2] and o.split(".")[1] in above}
            assert not wrong, f"{name} imports {wrong}"


def test_the_runtime_does_not_know_the_compiler():
    for name, others in EDGES.items():
        if name.startswith("nnspec.runtime"):
            assert all(o.startswith("nnspec.runtime") for o in others), f"{name} imports {others}"


def test_only_the_backends_and_what_runs_import_frameworks():
    heavy = {"torch", "onnx", "onnxruntime"}
    for path in FILES:
        name = module_name(path)
        light = ("nnspec.render", "nnspec.show", "nnspec.pipeline", "nnspec.cli", "nnspec.costs.budget", "nnspec.expect",
                 "nnspec.reference")
        if name.split(".")[1:2] in (["lang"], ["ir"], ["ops"], ["stages"]) or name in light:
            assert not {i.split(".")[0] for i in imports(path)} & heavy, name


@pytest.mark.parametrize("command", [["validate", "gpt2"], ["show", "gpt2"], ["list"], ["explain"]])
def test_light_commands_import_nothing_heavy(command):
    code = ("import sys\nfrom nnspec.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as done:\n    assert not done.code\n"
            "print(sorted({'torch', 'onnx', 'onnxruntime', 'numpy', 'transformers', 'rich'} & set(sys.modules)), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"
