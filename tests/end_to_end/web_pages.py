"""mitmweb with the filter, its API, and what a browser sees on its pages."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_tool_filter.cli.commands.demo import demo_upstream
from tests.browser import Page, asked
from tests.end_to_end.filtering import in_mitmproxy
from tests.mcp_upstream import Respond, mcp_upstream, tool
from tests.raw_upstream import free_port

PASSWORD = "only-for-tests"

DENY = "^(file|email)_(delete|send)$,_database$"

XSRF = "00112233445566778899aabbccddeeff"  # any will do that is in the cookie and the header

REVISION = "2025-11-25"


@dataclass
class Client:
    """A client that speaks Streamable HTTP, as plainly as can be."""

    port: int
    answers: list[Any] = field(default_factory=list)
    path: str = "/mcp"

    def ask(self, method: str, **params: object) -> Any:
        message = {"jsonrpc": "2.0", "id": len(self.answers), "method": method, "params": params}
        kinds = "application/json, text/event-stream"
        how = {"Content_Type": "application/json", "Accept": kinds}
        text = asked(self.port, "POST", self.path, json.dumps(message), **how)[1]
        self.answers.append(json.loads(text))
        return self.answers[-1]

    def begin(self) -> None:
        hello = {"name": "test", "version": "1"}
        self.ask("initialize", protocolVersion=REVISION, capabilities={}, clientInfo=hello)

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.ask("tools/list")["result"]["tools"]]

    def call(self, name: str) -> Any:
        return self.ask("tools/call", name=name, arguments={})


@dataclass
class Web:
    """mitmweb, and a client of the proxy in it."""

    port: int
    client: Client

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def api(
        self, method: str, path: str, body: object = None, *, password: str = PASSWORD
    ) -> tuple[int, str]:
        """Ask mitmweb, as its own pages do; ``bytes`` go out as they are."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body)
        xsrf = {"Cookie": f"_mitmproxy_xsrf={XSRF}", "X_XSRFToken": XSRF}
        token, kind = f"Bearer {password}", "application/json"
        return asked(self.port, method, path, raw, Authorization=token, Content_Type=kind, **xsrf)

    def command(self, name: str) -> list[str]:
        status, text = self.api("POST", f"/commands/{name}", {"arguments": []})
        assert status == 200, text
        value: list[str] = json.loads(text)["value"]
        return value

    def state(self) -> Any:
        return json.loads(self.api("GET", "/mcp/state")[1])

    def option(self, name: str) -> Any:
        return json.loads(self.api("GET", "/options")[1])[name]["value"]


@contextmanager
def running_demo() -> Iterator[int]:
    """Run the demo's upstream in a thread; its port."""
    with _in_a_thread(demo_upstream()) as it:
        yield it.port


@contextmanager
def running_upstream(respond: Respond, definition: bytes = tool("file_read")) -> Iterator[int]:
    """Run an upstream in a thread, which lists one tool; its port."""
    with _in_a_thread(mcp_upstream(tools=[definition], respond=respond)) as it:
        yield it.raw.port


@contextmanager
def _in_a_thread[T](server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    running = queue.SimpleQueue[T]()
    over = threading.Event()

    async def main() -> None:
        async with server as it:
            running.put(it)
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        yield running.get(timeout=20)
    finally:
        over.set()
        thread.join()


@contextmanager
def mitmweb(home: Path, upstream_port: int, more: Sequence[str] = ()) -> Iterator[Web]:
    """Run it before an upstream on this port."""
    web_port = free_port()
    options = {"confdir": home, "deny": DENY, "web_password": PASSWORD, "web_port": web_port}
    sets = [f"--set={name}={value}" for name, value in options.items()]
    upstream = f"http://127.0.0.1:{upstream_port}@{free_port()}"
    with in_mitmproxy("mitmweb", upstream, "--no-web-open-browser", *sets, *more) as it:
        yield Web(web_port, Client(it.port))


def open_flow(web: Web, page: Page, id: str, tab: str) -> None:
    page.go("about:blank")  # mitmweb looks at what follows the # only when it is loaded
    page.go(web.url(f"/#/flows/{id}/{tab}"))


def edit_deny(web: Web, page: Page, text: str) -> None:
    page.go("about:blank")
    page.go(web.url(f"/?token={PASSWORD}"))
    page.wait_for("Options")
    page.run(CLICK, "nav a", "Options")
    page.run(CLICK, "button", "Edit Options")
    page.find(".modal textarea[name=deny]")
    page.run(PASTE, text)


CLICK = """
const [css, text] = arguments;
[...document.querySelectorAll(css)].find(one => one.innerText.includes(text)).click();
"""

PASTE = """
// Not key by key: mitmweb adopts each key, and not always in their order.
const box = document.querySelector(".modal textarea[name=deny]");
const { set } = Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value");
set.call(box, arguments[0]);
box.dispatchEvent(new Event("input", { bubbles: true }));
"""


def open_tab(page: Page, name: str) -> None:
    """Show a tab of the page: activity, tools, approvals or sessions."""
    page.find(f"#tab-{name}").click()
    page.find(f"#{name}:not([hidden])")


def figure(page: Page, label: str) -> str:
    css = f'[data-figure="{label}"] dd'
    page.find(css)
    # In one order: the page draws itself anew, and what was found may be gone when it is read.
    return str(page.run("return document.querySelector(arguments[0]).innerText", css)).split()[0]


def row(page: Page, kind: str, tool: str) -> list[str]:
    """Return the cells of the row of a tool, or of a rule, from its name on."""
    script = (
        "return [...document.querySelectorAll(`.row.${arguments[0]}, tr.${arguments[0]}`)]"
        ".map(row => [...row.children].map(cell => cell.innerText))"
    )
    rows: list[list[str]] = page.run(script, kind)
    at = 0 if kind == "rule" else 1  # behind the switch
    return next(cells[at:] for cells in rows if f"{cells[at]}\n".startswith(tool))


def rule_table(page: Page) -> str:
    script = "return [...document.querySelectorAll('tr.rule')].map(row => row.innerText).join()"
    return str(page.run(script))


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the contrast of two colours, as WCAG 2.2 defines it; 4.5 is enough for text."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(part / 255) for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
