"""Pages of the HTML report, and a browser that shows them."""

from dataclasses import replace

import pytest
from nnspec.diff.html.page import page
from nnspec.diff.lock import of
from nnspec.diff.sides import compare_locks

from .browser import Browser, chromium
from .hostile import hand_made
from .pairs import GPT2, MODERN, WINDOW, compiled, report


@pytest.fixture(scope="package")
def reports():
    return {"modern": report(GPT2, MODERN), "window": report(GPT2, WINDOW), "same": report(GPT2, f"{GPT2}# a remark\n"),
            "hostile": hand_made(), "lock": compare_locks(of(compiled(GPT2)), of(compiled(MODERN)), ("a.nnspec.lock", "b.nnspec.lock")),
            "large": large(report(GPT2, MODERN)), **alone(report(GPT2, MODERN))}


def large(found):
    """Costs of many digits."""
    metrics = tuple(replace(m, before=m.before and m.before * 97, after=m.after and m.after * 991) for m in found.metrics)
    return replace(found, metrics=tuple(replace(m, note="at layers.{i}.ffn.mix.{i}.down") if m.name == "peak" else m for m in metrics))


def alone(found):
    """A spec that was added, and one that was removed."""
    rest = {"edits": (), "tensors": (), "metrics": ()}
    return {"new": replace(found, base=None, **rest), "gone": replace(found, head=None, **rest)}


@pytest.fixture(scope="package")
def browser(tmp_path_factory):
    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="package")
def files(reports, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, found in reports.items():
        (folder / f"{name}.html").write_text(page([found]), "utf-8")
    (folder / "several.html").write_text(page([reports["window"], reports["modern"]], ["error: </script> cannot be read"]), "utf-8")
    (folder / "none.html").write_text(page([]), "utf-8")
    (folder / "failed.html").write_text(page([], ["error: no op `liner` <b>"]), "utf-8")
    return folder


@pytest.fixture
def show(browser, files):
    """Opens a page, and says afterwards that it asked for nothing and complained of nothing."""
    opened = []

    def opening(name, fragment="", width=1600, scheme="light"):
        browser.window(width, scheme=scheme)
        browser.open(files / f"{name}.html", fragment)
        opened.append(name)
        return browser

    yield opening
    assert browser.run("document.title.length") > 0
    assert browser.problems == []
    assert {a.split("#")[0] for a in browser.requests} == {(files / f"{opened[-1]}.html").as_uri()}
