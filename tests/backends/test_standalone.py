"""Written sources run in an interpreter that has torch and no nnspec, bit-equal to the module in memory."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import zoo

NAMES = ["gpt2", "additive-seq2seq", "hard/moe", "hard/t5", "llama-3-8b", "minilm"]
ALONE = """
import sys
folder, packages, *names = sys.argv[1:]
sys.path[:0] = [folder, packages]
try:
    import nnspec
except ImportError:
    pass
else:
    raise SystemExit(f"nnspec is at {nnspec.__file__}")
import importlib, torch
torch.set_num_threads(1)    # as the tests: sums depend on how many threads share them
for name in names:
    case = torch.load(f"{folder}/{name}.pt")
    module = getattr(importlib.import_module(name), case["class"])().eval()
    assert list(module.state_dict()) == case["keys"], name
    module.load_state_dict(case["state"])
    with torch.no_grad():
        out = module(**case["inputs"])
    out = out if isinstance(out, dict) else {"out": out}
    assert out.keys() == case["outputs"].keys(), name
    for o, x in out.items():
        assert torch.equal(x, case["outputs"][o]), (name, o)
    print(name)
"""


def test_files_run_without_nnspec(tmp_path):
    """`-I -S` leaves out site-packages and its path files; torch's own folder is added by hand, with nnspec refused."""
    files = []
    for k, name in enumerate(NAMES):
        module, file = zoo.stirred(name), f"model_{k}"
        letters = zoo.free(name)
        arrays = zoo.draw(name, dict(zip(letters, (3, 7, 5), strict=False)), seed=k)
        inputs = {n: torch.from_numpy(x) for n, x in arrays.items()}
        with torch.no_grad():
            out = module(**inputs)
        outputs = out if isinstance(out, dict) else {"out": out}
        assert all(x.abs().sum() > 0 for x in outputs.values())
        (tmp_path / f"{file}.py").write_text(zoo.model(name).source())
        state = module.state_dict()
        torch.save({"class": type(module).__name__, "keys": list(state), "state": state, "inputs": inputs, "outputs": outputs},
                   tmp_path / f"{file}.pt")
        files.append(file)
    packages = tmp_path / "packages"                 # the packages beside torch, without ours where it is installed
    packages.mkdir()
    for found in Path(torch.__file__).parent.parent.iterdir():
        if "nnspec" not in found.name:
            (packages / found.name).symlink_to(found)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", ALONE, str(tmp_path), str(packages), *files],
                          capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == files


@pytest.mark.parametrize("name", zoo.SPECS)
def test_files_are_tidy(name):
    """Lines of at most 100 columns; every function, import and local is used; no local is named only to be returned."""
    text = zoo.model(name).source()
    assert max(map(len, text.splitlines())) <= 100
    tree = ast.parse(text)
    loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    made = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    made += [a.asname or a.name for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    assert set(made) <= loaded
    for f in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "forward"):
        stored = {t.id for n in ast.walk(f) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
        assert stored <= {n.id for n in ast.walk(f) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}, f"{f.name} line {f.lineno}"
        *_, before, last = [None, *f.body]
        if isinstance(before, ast.Assign) and isinstance(last.value, ast.Name):
            assert [t.id for t in before.targets if isinstance(t, ast.Name)] != [last.value.id], f"{f.name} line {last.lineno}"
