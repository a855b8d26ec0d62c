"""The comment of a pull request: what it holds, and what it drops, in which order, where it is too long."""

import re
from dataclasses import replace

import pytest
from nnspec.cli import main
from nnspec.diff.formats import markdown as md
from nnspec.diff.formats.markdown import BUDGET, FOLDED, OPEN, WAYS, markdown, run_link
from nnspec.diff.formats.markup import cell, code

from .pairs import GPT2, KV, MODERN, NORM, WINDOW, edited, report
from .test_pairs import BASES, HEADS


@pytest.fixture(scope="module")
def modern():
    return report(GPT2, MODERN)


def tables(text):
    """The rows of every table, split into cells; all rows of one are as long as its head."""
    found, now = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            now.append([c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif now:
            found.append(now)
            now = []
    assert all(len(row) == len(t[0]) for t in found for row in t)
    return found


@pytest.mark.parametrize("pair", HEADS)
def test_a_comment_holds_what_the_text_does(pair):
    r = report(BASES.get(pair, GPT2), HEADS[pair])
    made = markdown([r])
    assert made.startswith("<!-- nnspec-diff:head.yaml -->\n\n### head.yaml\n") and "none → none" not in made and "-0.00%" not in made
    costs, edits, *_ = tables(made)
    assert costs[0][0] == "cost @ B=1 S=1024 float16" and edits[0][1:] == ["edit", "what", "where", "parameters", "checkpoint", "id"]
    assert [row[6] for row in edits[2:]] == [f"`{e.id}`" for e in sorted(r.edits, key=lambda e: md.RANK[e.level])][:OPEN]
    assert all("<br>spec.yaml:" in row[1] for row in edits[2:])
    assert made.count("<details>") == made.count("</details>") and made.count("```") % 2 == 0
    assert re.search(r"0 B \|", made) is None                                        # no change is `0`


def test_contracts_are_one_list_without_repetition(modern):
    made = markdown([modern])
    block = next(b for b in made.split("\n\n") if b.startswith("- "))
    assert block.splitlines() == [
        "- interface **info**: S &lt;= 1024 → no bound",
        "- cache **breaking**: `layers.{i}.attention.value_heads` 12 x float\\[B, 12, C, 64\\] → 16 x float\\[B, 4, C, 64\\]",
        "- cache **breaking**: layers.{i}.attention.key\\_heads: 12 x float\\[B, 12, C, 64\\] → "
        "layers.{i}.attention.key\\_placed.out: 16 x float\\[B, 4, C, 64\\]"]


def test_silent_edits_are_said_above_all_and_in_their_row():
    made = markdown([report(GPT2, WINDOW)])
    assert "**1 silent**" in made and "- silent **breaking**: layers.pattern: no load notices" in made
    assert tables(made)[1][2][5] == "silent: every tensor fits as before, but queries see other keys"


def many(r, n):
    """A report with n edits."""
    return replace(r, edits=tuple(replace(e, keys=(*e.keys, str(k))) for k, e in zip(range(n), r.edits * n, strict=False)))


def test_five_edits_are_open_and_fifty_in_each_fold(modern):
    made = markdown([many(modern, 5)])
    assert "more edit" not in made
    made = markdown([many(modern, 5 + 50 + 3)])
    assert "<summary>50 more edits</summary>" in made and "<summary>3 more edits</summary>" in made and "not listed" not in made
    lengths = [len(t) - 2 for t in tables(made) if t[0][1] == "edit"]
    assert lengths == [OPEN, FOLDED, 3]


def sized(monkeypatch, reports, budget, **more):
    monkeypatch.setattr(md, "BUDGET", budget)
    made = markdown(reports, **more)
    assert len(made) <= budget
    return made


def test_what_does_not_fit_is_dropped_in_order(monkeypatch, modern):
    """The picture, then tensors, then edits beyond fifty, then all but the verdicts."""
    r = many(modern, 80)
    lengths = [len(md._page([r], way, "nnspec diff BASE HEAD", (), "")) for way in WAYS]
    assert lengths == sorted(lengths, reverse=True) and len({*lengths}) == len(lengths)
    said = []
    for length in lengths:
        made = sized(monkeypatch, [r], length)
        edits = sum(len(t) - 2 for t in tables(made) if t[0][1:2] == ["edit"])
        said.append(("mermaid" in made, "Tensors" in made, edits, "limited size" in made))
    assert said == [(True, True, 80, False), (False, True, 80, True), (False, False, 80, True), (False, False, 50, True),
                    (False, False, 5, True), (False, False, 0, True)]
    assert "function **changed** · checkpoint **partial**" in made


def test_a_comment_never_exceeds_its_budget(modern):
    for n in (1, 20, 400):
        made = markdown([many(modern, 60)] * n, "nnspec diff --git main...HEAD", link="https://forge.example/o/r/actions/runs/7")
        assert len(made) <= BUDGET and "[this run](https://forge.example/o/r/actions/runs/7)" in made
    assert "does not fit into a comment" in made


def test_several_specs_have_a_table_first_and_unchanged_ones_a_count(modern):
    same = report(GPT2, GPT2)
    silent = report(GPT2, edited(GPT2, *KV, "gelu_tanh -> relu"))
    added, removed = replace(modern, base=None, edits=()), replace(modern, head=None, edits=())
    made = markdown([modern, same, silent, same, added, removed])
    (first, *_) = tables(made)
    assert made.index("| spec |") < made.index("### ") and "2 specs without an architectural change." in made
    assert [row[1:] for row in first[2:]] == [
        ["changed", "partial", "5 edits: 4 breaking, 1 warning", "+14,878,976"],
        ["changed", "silent", "2 edits: 2 breaking", "-9,449,472"], ["added", "", "", "139,318,784"], ["removed", "", "", "124,439,808"]]
    assert "Added spec: 139,318,784 parameters." in made and "Removed spec: 124,439,808 parameters." in made
    assert markdown([same, same]).count("|") == 0 and "2 specs without" in markdown([same, same])


def test_what_could_not_be_compared_is_first(modern):
    made = markdown([modern], failures=["error[x]: ``` <b>"])
    assert made.index("could not be made") < made.index("### head.yaml") and "''' <b>" in made


@pytest.mark.parametrize("text", ["a|b", "`x`", "<img src=x>", "[l](u)", "@all #1", "a\nb", "a\\|b", "-->", "*b* _i_"])
def test_what_a_spec_says_is_no_markup(text, modern):
    r = replace(modern, edits=(replace(modern.edits[0], title=text, after=text, notes=(text,)),), head=replace(modern.head, label=text))
    made = markdown([r], command=text)
    assert tables(made)[1][2][1].startswith(cell(text))
    inside = made.partition("\n")[2].rpartition("<sub>")[0]                          # without the marker and the command, which is code
    assert "<img" not in inside and "\n@all" not in inside
    assert made.index("-->") == made.splitlines()[0].index("-->") and "\n" not in code(text)


def test_the_run_is_linked_where_there_is_one():
    there = {"GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7"}
    assert run_link(there) == "https://forge.example/o/r/actions/runs/7" and run_link({}) == run_link({**there, "GITHUB_RUN_ID": ""}) == ""


def test_the_footer_is_the_command_that_tells_it_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.yaml").write_text(GPT2.lstrip())
    (tmp_path / "b.yaml").write_text(edited(GPT2, *NORM).lstrip())
    asked = ["--at", "B=2,S=8", "--budget", "parameters=+5%"]
    for more in ([], ["--fail-on", "info"]):
        with pytest.raises(SystemExit):
            main(["diff", "a b.yaml", "b.yaml", *asked, "-f", "md", *more])
        out = capsys.readouterr().out
        assert "<sub>`nnspec diff --at B=2,S=8 --budget parameters=+5% 'a b.yaml' b.yaml` tells this again.</sub>" in out


def test_a_shared_file_is_told_once(modern):
    made = markdown([replace(modern, uses=("parts/mine.yaml",))])
    assert made.count("\n- parts/mine.yaml differs, and the 1 spec that uses it changes: head.yaml\n") == 1
