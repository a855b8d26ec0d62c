"""Reports for machines of continuous integration: GitHub annotations and JUnit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as xml

from ..report import Edit, Report
from . import words
from .facts import Fact, facts, plain

KINDS = {"breaking": "error", "warning": "warning", "info": "notice"}
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\ud800-\udfff\ufffe\uffff]")


def github(reports: Sequence[Report], failures: Sequence[str] = ()) -> str:
    """One workflow command an edit, at its line in the head; of what is gone, at the nearest key above it."""
    made = [f"::{KINDS[e.level]} {_place(e)}::{_escaped(_message(r, e), '')}\n" for r in reports for e in r.edits]
    made += [f"::{KINDS[f.level]} {_at(f)}::{_escaped(f.text, '')}\n" for r in reports for f in facts(r)]
    return "".join([*made, *(f"::error title=nnspec could not compare::{_escaped(f.strip(), '')}\n" for f in failures)])


def _at(f: Fact) -> str:
    title = f"title={_escaped(f'nnspec {f.name}', ':,')}"
    return title if f.place is None else f"file={_escaped(f.place[0], ':,')},line={f.place[1]},{title}"


def _place(e: Edit) -> str:
    title = f"title={_escaped(f'nnspec {e.rule}', ':,')}"
    place = e.head or e.base
    if place is None:
        return title
    file = plain(place.file)
    return f"file={_escaped(file, ':,')},line={place.line},col={place.column},{title}"


def _message(r: Report, e: Edit) -> str:
    delta = e.deltas.get("parameters", 0)
    lines = [f"{e.title} {words.change(e)}".strip(), f"at {words.places(e.where)}"]
    if delta:
        lines.append(f"{words.signed(f'{delta:,}', delta)} parameters")
    lines.append(f"checkpoint {e.checkpoint}" + (f": {e.conversion.text}" if e.conversion else ""))
    return "\n".join([*lines, *e.notes, f"id {e.id}"])


def _escaped(text: str, also: str) -> str:
    """Escapes as the workflow command parser of GitHub Actions undoes them."""
    return "".join(f"%{ord(c):02X}" if c in "%\r\n" + also else c for c in text)


def junit(reports: Sequence[Report], failures: Sequence[str] = ()) -> str:
    """One suite a spec, one case an edit and one for each fact beside them: breaking ones fail, what could not be found out is skipped, and
    comparisons that could not be made are errors."""
    root = xml.Element("testsuites", name="nnspec diff")
    for r in reports:
        side, beside = r.head or r.base, list(facts(r))
        failed = sum(e.level == "breaking" for e in r.edits) + sum(f.failed for f in beside)
        suite = xml.SubElement(root, "testsuite", name=_text(side.label if side else ""), tests=str((len(r.edits) or 1) + len(beside)),
                               failures=str(failed), errors="0", skipped=str(sum(f.skipped for f in beside)))
        if not r.edits:
            xml.SubElement(suite, "testcase", name="no architectural change", classname="nnspec.diff")
        for e in r.edits:
            case = xml.SubElement(suite, "testcase", name=_text(f"{e.rule} {e.id}"), classname="nnspec.diff")
            _result(case, _message(r, e), f"{e.title} {words.change(e)}" if e.level == "breaking" else "", e.rule)
        for k, f in enumerate(beside):
            before = sum(other.name == f.name for other in beside[:k])
            name = f"{f.name} {before + 1}" if before else f.name
            case = xml.SubElement(suite, "testcase", name=_text(name), classname="nnspec.diff.beside")
            if f.skipped:
                xml.SubElement(case, "skipped", message=_text(f.headline))
            _result(case, f.text, f.headline if f.failed else "", f.name)
    if failures:
        suite = xml.SubElement(root, "testsuite", name="not compared", tests=str(len(failures)), failures="0", errors=str(len(failures)))
        for k, why in enumerate(failures):
            case = xml.SubElement(suite, "testcase", name=f"comparison {k + 1}", classname="nnspec.diff")
            xml.SubElement(case, "error", message=_text(why.splitlines()[0])).text = _text(why)
    xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(root, encoding="unicode") + "\n"


def _result(case: xml.Element, said: str, failed: str, kind: str) -> None:
    """What a case says, as its failure where it has one."""
    if failed:
        xml.SubElement(case, "failure", message=_text(failed), type=kind).text = _text(said)
    else:
        xml.SubElement(case, "system-out").text = _text(said)


def _text(text: str) -> str:
    """Text that XML can hold."""
    return _CONTROL.sub("\ufffd", text)
