"""A headless Chromium, driven by WebDriver with nothing but the standard library.

    with browser(tmp_path) as page:
        page.go("http://127.0.0.1:8081/mcp?token=…")
        page.wait_for("Exposed")
        page.screenshot(Path("page.png"))

Debian has what it needs: apt-get install chromium chromium-driver fonts-noto-color-emoji.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.programs import need_program
from tests.raw_upstream import TIMEOUT, free_port
from tests.waiting import eventually

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # WebDriver, section 12.1
# Without the last ones it asks for the world outside at every start.
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--no-first-run", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-proxy-server",
)  # fmt: skip


def asked(
    port: int, method: str, path: str, body: str | bytes | None = None, **headers: str
) -> tuple[int, str]:
    """Ask what listens there on this machine; its status and its text."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def listens_on(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class WebDriverError(AssertionError):
    """The browser could not do it."""


@dataclass(frozen=True)
class Element:
    """Something on the page."""

    page: Page
    id: str

    def click(self, *, seconds: float = 0) -> None:
        """Press and release it; hold it down for some seconds in between."""
        if not seconds:
            self.page.order("POST", f"/element/{self.id}/click", {})
            return
        steps = [
            {"type": "pointerMove", "origin": {_ELEMENT: self.id}, "x": 0, "y": 0},
            {"type": "pointerDown", "button": 0},
            {"type": "pause", "duration": round(1000 * seconds)},
            {"type": "pointerUp", "button": 0},
        ]
        mouse = {"type": "pointer", "id": "mouse", "actions": steps}
        self.page.order("POST", "/actions", {"actions": [mouse]})

    def type(self, text: str) -> None:
        self.page.order("POST", f"/element/{self.id}/value", {"text": text})

    def clear(self) -> None:
        self.page.order("POST", f"/element/{self.id}/clear", {})


class Page:
    """The one window of a browser."""

    def __init__(self, port: int, arguments: Sequence[str]) -> None:
        self._port = port
        wanted = {"goog:chromeOptions": {"args": list(arguments)}}
        self._session = ""
        answer = self.order("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/{answer['sessionId']}"

    def order(self, method: str, path: str, arguments: object = None) -> Any:
        """Give an order of the WebDriver protocol; return its value."""
        body = None if arguments is None else json.dumps(arguments)
        _, text = asked(self._port, method, f"/session{self._session}{path}", body)
        value = json.loads(text)["value"]
        if isinstance(value, dict) and "error" in value:
            raise WebDriverError(f"{value['error']}: {value['message']}")
        return value

    def go(self, url: str) -> None:
        self.order("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """Run the body of a function in the page; return what it returns."""
        return self.order("POST", "/execute/sync", {"script": script, "args": arguments})

    @property
    def text(self) -> str:
        """All that a person sees, as text."""
        return str(self.run("return document.body.innerText"))

    def find(self, css: str) -> Element:
        """Wait for an element."""
        return Element(self, str(self.until(lambda: self._find(css), css)))

    def wait_for(self, *texts: str) -> None:
        """Wait until all of this can be read on the page."""
        self.until(lambda: all(text in self.text for text in texts), f"{texts}")

    def until(self, ready: Callable[[], Any], what: str) -> Any:
        return eventually(ready, lambda: f"there is no {what} in:\n{self.text}")

    def prefer(self, scheme: str) -> None:
        """Set the colour scheme that the browser prefers, ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._emulate("EmulatedMedia", features=features)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._emulate("DeviceMetricsOverride", **metrics)

    def _emulate(self, what: str, **how: object) -> None:
        order = {"cmd": f"Emulation.set{what}", "params": how}
        self.order("POST", "/goog/cdp/execute", order)

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.order("GET", "/screenshot")))

    def errors(self) -> list[str]:
        """What the browser's console complains of."""
        log = self.order("POST", "/se/log", {"type": "browser"})
        return [str(entry["message"]) for entry in log if entry["level"] == "SEVERE"]

    def _find(self, css: str) -> str | None:
        found = self.order("POST", "/elements", {"using": "css selector", "value": css})
        return found[0][_ELEMENT] if found else None


@contextmanager
def browser(home: Path) -> Iterator[Page]:
    """Run a browser with a profile of its own until the end of the block."""
    need_program("chromium")
    need_program("chromedriver", "chromium-driver")
    port = free_port()
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}", "--silent"], env={**os.environ, "HOME": str(home)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    page = None
    try:
        eventually(lambda: listens_on(port), lambda: "chromedriver does not start")
        page = Page(port, [*_FLAGS, f"--user-data-dir={home / 'profile'}"])
        page.resize(1280, 860)
        yield page
    finally:
        if page:
            page.order("DELETE", "")
        driver.terminate()
        driver.wait()
