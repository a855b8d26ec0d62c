"""Chromium without a window, driven over a pipe by the DevTools protocol (https://chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def chromium() -> str | None:
    """The program, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. `problems` are what its console complained of, `requests` every address that it asked for."""

    def __init__(self, program: str, folder: Path):
        (child_in, ours_out), (ours_in, child_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (child_in, child_out)]
        arguments = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
                     f"--user-data-dir={folder}", "about:blank"]

        def pipes() -> None:
            for fd, number in zip(high, (3, 4), strict=True):
                os.dup2(fd, number)
        self.process = subprocess.Popen(
            arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=pipes)  # noqa: PLW1509  the pipes must be 3 and 4, and nothing here runs threads
        for fd in (child_in, child_out, *high):
            os.close(fd)
        self.out, self.into = os.fdopen(ours_out, "wb", buffering=0), os.fdopen(ours_in, "rb")
        self.count, self.problems, self.requests = 0, list[str](), list[str]()
        self.session: str | None = None
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result; events that come meanwhile are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters} | ({"sessionId": self.session} if self.session else {})
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            found = self.read()
            if found.get("id") == self.count:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.event(found)

    def read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self.into.read(1)) != b"\0":
            if not byte:
                raise RuntimeError(f"the browser ended with {self.process.wait()}")
            data += byte
        return json.loads(data)

    def event(self, found: dict[str, Any]) -> None:
        method, p = found.get("method"), found.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.problems.append(p["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.problems.append(str(p["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {p['message']}")
            self.send("Page.handleJavaScriptDialog", accept=False)

    def open(self, path: Path, fragment: str = "") -> None:
        """Loads a file anew."""
        self.send("Page.navigate", url="about:blank")
        self.problems.clear()
        self.requests.clear()
        self.send("Page.navigate", url=path.as_uri() + fragment)
        self.wait("document.readyState + location.protocol == 'completefile:'")

    def wait(self, condition: str) -> None:
        """Until an expression is true, which may be on the page that comes after this one."""
        deadline = time.monotonic() + 20
        while True:
            try:
                if self.run(condition):
                    return
            except RuntimeError as wrong:
                if not any(word in str(wrong) for word in ("navigated", "context")):
                    raise
            assert time.monotonic() < deadline, condition

    def run(self, script: str) -> Any:
        """The value of an expression."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]["exception"]["description"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        code = KEYS.get(key, ord(key.upper()) if len(key) == 1 and key.isalnum() else 0)
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.run("new Promise(done => setTimeout(done, 20))")               # `toggle` of details comes in a task of its own

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def window(self, width: int, height: int = 900, scheme: str = "light", media: str = "") -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path, whole: bool = False) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def names(self) -> list[tuple[str, str]]:
        """(role, name) of everything that a screen reader tells."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored")]

    def close(self) -> None:
        self.session = None
        self.send("Browser.close")
        self.process.wait(timeout=20)
        self.out.close()
        self.into.close()


# what is on a page


def texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(x => x.innerText.replace(/\\s+/g, ' ').trim())")


def text(browser, selector):
    return texts(browser, selector)[0]


def focused(browser):
    return browser.run("(a => a.closest('.edit')?.id || a.id || a.tagName)(document.activeElement)")


def in_view(browser, selector):
    return browser.run(f"(r => r.top >= 0 && r.bottom <= innerHeight && r.height > 0)"
                       f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
