"""Reports for machines of continuous integration: GitHub annotations and JUnit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as xml

from . import file_layer, words
from .report import Edit, Report

KINDS = {"breaking": "error", "warning": "warning", "info": "notice"}
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\ud800-\udfff\ufffe\uffff]")


def github(reports: Sequence[Report], failures: Sequence[str] = ()) -> str:
    """One workflow command an edit, at its line in the head; of what is gone, at the nearest key above it."""
    made = [f"::{KINDS[e.level]} {_place(e)}::{_escaped(_message(r, e), '')}\n" for r in reports for e in r.edits]
    made += [f"::{kind} title=nnspec checkpoint::{_escaped(said, '')}\n" for r in reports for kind, said in _files(r)]
    return "".join([*made, *(f"::error title=nnspec could not compare::{_escaped(f.strip(), '')}\n" for f in failures)])


def _files(r: Report) -> Iterator[tuple[str, str]]:
    """(kind, what) of the weight file that the user named, where there is one."""
    if (layer := r.layers.get("checkpoint")) is not None:
        yield ("notice" if layer["base"]["fits"] else "warning"), "\n".join(file_layer.told(layer))


def _place(e: Edit) -> str:
    title = f"title={_escaped(f'nnspec {e.rule}', ':,')}"
    place = e.head or e.base
    if place is None:
        return title
    file = re.sub(r"^[^:]+:\./", "", place.file)                # the file alone of `REF:./FILE`
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
    """One suite a spec, one case an edit: breaking ones fail, and comparisons that could not be made are errors."""
    root = xml.Element("testsuites", name="nnspec diff")
    for r in reports:
        side = r.head or r.base
        files = list(_files(r))
        bad = sum(e.level == "breaking" for e in r.edits) + sum(kind == "warning" for kind, _ in files)
        suite = xml.SubElement(root, "testsuite", name=_text(side.label if side else ""),
                               tests=str((len(r.edits) or 1) + len(files)), failures=str(bad), errors="0")
        if not r.edits:
            xml.SubElement(suite, "testcase", name="no architectural change", classname="nnspec.diff")
        for kind, said in files:
            case = xml.SubElement(suite, "testcase", name="checkpoint", classname="nnspec.diff")
            if kind == "warning":
                xml.SubElement(case, "failure", message=_text(said.splitlines()[1]), type="checkpoint").text = _text(said)
            else:
                xml.SubElement(case, "system-out").text = _text(said)
        for e in r.edits:
            case = xml.SubElement(suite, "testcase", name=_text(f"{e.rule} {e.id}"), classname="nnspec.diff")
            if e.level == "breaking":
                xml.SubElement(case, "failure", message=_text(f"{e.title} {words.change(e)}"), type=e.rule).text = _text(_message(r, e))
            else:
                xml.SubElement(case, "system-out").text = _text(_message(r, e))
    if failures:
        suite = xml.SubElement(root, "testsuite", name="not compared", tests=str(len(failures)), failures="0", errors=str(len(failures)))
        for k, f in enumerate(failures):
            case = xml.SubElement(suite, "testcase", name=f"comparison {k + 1}", classname="nnspec.diff")
            xml.SubElement(case, "error", message=_text(f.splitlines()[0])).text = _text(f)
    xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    """Text that XML can hold."""
    return _CONTROL.sub("\ufffd", text)
