"""Exit codes of comparisons, as specs/DIFF.md says: 0 where it was made, 1 where what is asked for was found, 2 where it was not made."""

import itertools
import subprocess
import sys

import pytest
from nnspec.cli import main
from nnspec.cli.config import CONTRACTS, LEVELS
from nnspec.cli.diff import failing
from nnspec.diff.sides import compared

from .convertible import DEEPER, GATED, PLAIN, RENAMED, WIDER, put, saved
from .pairs import edited
from .test_commands import files, run  # noqa: F401
from .test_git import NAME, TINY, repo  # noqa: F401

# name: (text, the level of going there from `plain`, contracts, the level of going back, contracts)
EDITED = {
    "same": ("# words\n" + PLAIN, None, set(), None, set()),
    "dropout": (put(PLAIN, ("gelu_tanh}", "gelu_tanh, dropout: 0.1}")), "info", {"training"}, "info", {"training"}),
    "renamed": (RENAMED, "warning", {"checkpoint"}, "warning", {"checkpoint"}),
    "deeper": (DEEPER, "warning", {"checkpoint", "numerics", "cache", "cost"}, "breaking", {"checkpoint", "numerics", "cache", "cost"}),
    "gated": (GATED, "breaking", {"checkpoint", "numerics", "cost"}, "breaking", {"checkpoint", "numerics", "cost"}),
    "wider": (WIDER, "breaking", {"checkpoint", "numerics", "interface", "cost"},
              "breaking", {"checkpoint", "numerics", "interface", "cost"}),
    "window": (put(PLAIN, ("causal: true", "causal: true, window: 5")), "breaking", {"checkpoint", "numerics", "silent", "cache", "cost"},
               "breaking", {"checkpoint", "numerics", "silent", "cache", "cost"}),
}
WORDS = [*LEVELS, *CONTRACTS]


@pytest.fixture
def sides(files):  # noqa: F811
    files(plain=PLAIN, broken=edited(PLAIN, "op: linear -> op: liner"), text="graph: {x: {op: foo", **{k: v[0] for k, v in EDITED.items()})


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("name", EDITED)
def test_fails_on_what_is_named_and_on_nothing_else(sides, capsys, name, back):
    level, contracts = EDITED[name][3:] if back else EDITED[name][1:3]
    pair = (f"{name}.yaml", "plain.yaml") if back else ("plain.yaml", f"{name}.yaml")
    report = compared(*pair)
    found = {w for w in WORDS if failing(report, (w,))}
    reached = set() if level is None else set(LEVELS[:LEVELS.index(level) + 1])
    assert found == reached | contracts
    assert run(capsys, "diff", *pair)[0] == 0 and run(capsys, "diff", *pair, "--exit-code")[0] == (level is not None)
    for both in itertools.combinations(WORDS, 2):               # a list fails where one of its words does
        assert failing(report, both) == bool(found & {*both})
    for word in [*sorted(found)[:1], *sorted({*WORDS} - found)[:1]]:
        assert run(capsys, "diff", *pair, "--fail-on", f"training,{word}")[0] == bool(found & {"training", word})


BAD = [("broken.yaml", "plain.yaml"), ("plain.yaml", "broken.yaml"), ("text.yaml", "text.yaml"), ("plain.yaml", "nowhere.yaml"),
       ("nowhere:plain.yaml", "plain.yaml"), ("plain.yaml", "."), ("plain.yaml",), ("plain.yaml", "same.yaml", "gated.yaml"), ()]
ASKED = [(), ("--exit-code",), ("--fail-on", "info"), ("--summary",), ("-f", "json"), ("-f", "github"), ("--keys",),
         ("--budget", "parameters=+0")]


@pytest.mark.parametrize("asked", ASKED, ids=" ".join)
@pytest.mark.parametrize("pair", BAD, ids=" ".join)
def test_what_was_not_compared_is_2_whatever_is_asked(sides, capsys, pair, asked):
    code, out, err = run(capsys, "diff", *pair, *asked)
    assert code == 2 and "no architectural change" not in out and "error" in out + err


WRONG = [("--fail-on", "loud"), ("--at", "Q=1"), ("--at", "B"), ("--budget", "x=1"), ("--map", "no.yaml"), ("--map", "a=b"),
         ("--accept", "no.yaml"), ("--checkpoint", "no.safetensors"), ("--write-keymap", "no/map.yaml"), ("--write-accept", "no/ok.yaml"),
         ("-o", "no/out"), ("-f", "json", "-f", "md"), ("--weights", "x"), ("--config", "no.yaml"), ("--cost-epsilon", "x"),
         ("--by", "luck"), ("--loud",)]


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_wrong_options_are_2_also_where_nothing_differs(sides, capsys, wrong):
    for pair in (("plain.yaml", "same.yaml"), ("plain.yaml", "gated.yaml")):
        code, _, err = run(capsys, "diff", *pair, *wrong, "--exit-code")
        assert code == 2 and "error[" in err


def test_the_other_commands(sides, capsys, tmp_path):
    saved(tmp_path / "old.safetensors", PLAIN)
    given = ("migrate", "old.safetensors", "--from", "plain.yaml", "-o", "new.safetensors", "--to")
    assert [run(capsys, *given, f"{n}.yaml")[0] for n in ("renamed", "gated", "window", "broken")] == [0, 1, 1, 2]
    assert run(capsys, "lock", "--check", "plain.yaml")[0] == 1 and run(capsys, "lock", "plain.yaml")[0] == 0
    assert run(capsys, "lock", "--check", "plain.yaml")[0] == 0 and run(capsys, "lock", "--check", "plain.yaml", "broken.yaml")[0] == 2
    assert run(capsys, "textconv", "broken.yaml")[0] == run(capsys, "textconv", "plain.yaml")[0] == 0
    driver = ("git-diff-driver", "x.yaml", "plain.yaml", "0", "0", "broken.yaml", "0", "0")
    assert run(capsys, *driver)[0] == 0                         # a driver that fails would end `git diff`
    assert run(capsys, "difftool", "plain.yaml", "gated.yaml", "--no-open", "-o", "p.html")[0] == 0
    assert run(capsys, "difftool", "plain.yaml", "broken.yaml", "--no-open", "-o", "p.html")[0] == 2


def test_a_range_is_2_where_one_of_its_specs_was_not_compared(repo, capsys):  # noqa: F811
    (repo / "specs" / NAME).write_text(TINY + "notes: x\n")
    assert run(capsys, "diff", "--git", "HEAD", "--exit-code")[0] == 0
    (repo / "specs" / NAME).write_text(edited(TINY, "causal: true -> causal: true, window: 5"))
    assert [run(capsys, "diff", "--git", "HEAD", *more)[0] for more in ((), ("--exit-code",), ("--fail-on", "silent"))] == [0, 1, 1]
    (repo / "specs" / "broken.yaml").write_text("graph: {x: {op: foo")
    for more in ((), ("--exit-code",), ("--fail-on", "silent")):
        assert run(capsys, "diff", "--git", "HEAD", *more)[0] == 2
    assert run(capsys, "diff", "--git", "nowhere")[0] == 2


def test_a_fault_of_our_own_is_2_and_says_so(sides, monkeypatch, capsys):
    code = ("import sys\nimport nnspec.diff.sides as s\nfrom nnspec.cli import main\n"
            "def broken(*a, **k):\n    raise KeyError('a fault')\n"
            "s.compared = broken\nsys.argv[1:] = ['diff', 'plain.yaml', 'gated.yaml']\nmain()\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "please report" in done.stderr and "a fault" in done.stderr and done.stdout == ""
    monkeypatch.setattr("nnspec.diff.sides.compared", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):                      # of tests, which must see it
        main(["diff", "plain.yaml", "gated.yaml"])
