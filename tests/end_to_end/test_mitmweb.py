"""mitmweb with the filter, over its HTTP API and in a real browser: what a person sees there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.cli.commands.demo_upstream import demo_upstream
from tests.browser import Page, browser
from tests.end_to_end.filtering import SCRIPT, introduced
from tests.end_to_end.peer import client, need, upstream
from tests.proxy import REPOSITORY
from tests.raw_upstream import free_port

PICTURE = REPOSITORY / ".pictures" / "mitmweb.png"
PASSWORD = "only-for-tests"
DENY = "^(file|email)_(delete|send)$,_database$"
XSRF = "00112233445566778899aabbccddeeff"  # any will do that is in the cookie and the header
REVISION = "2025-11-25"


@dataclass
class Client:
    """A client that speaks Streamable HTTP, as plainly as can be."""

    port: int
    answers: list[Any] = field(default_factory=list)

    def ask(self, method: str, **params: object) -> Any:
        message = {"jsonrpc": "2.0", "id": len(self.answers), "method": method, "params": params}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/mcp", json.dumps(message), headers)
        self.answers.append(json.loads(connection.getresponse().read()))
        connection.close()
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
        """Ask mitmweb, as its own pages do."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {
            "Authorization": f"Bearer {password}",
            "Content-Type": "application/json",
            "Cookie": f"_mitmproxy_xsrf={XSRF}",
            "X-XSRFToken": XSRF,
        }
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

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
    """Run the demo's upstream in a thread."""
    ports: list[int] = []
    started, over = threading.Event(), threading.Event()

    async def main() -> None:
        async with demo_upstream() as demo:
            ports.append(demo.port)
            started.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert started.wait(20)
        yield ports[0]
    finally:
        over.set()
        thread.join()


@contextmanager
def mitmweb(home: Path, upstream_port: int, more: Sequence[str] = ()) -> Iterator[Web]:
    """Run it before an upstream on this port."""
    port, web_port = free_port(), free_port()
    options = {"confdir": str(home), "deny": DENY, "web_password": PASSWORD}
    command = [str(Path(sys.executable).with_name("mitmweb")), "-s", str(SCRIPT)]
    command += ["--mode", f"reverse:http://127.0.0.1:{upstream_port}@{port}"]
    command += ["--web-port", str(web_port), "--no-web-open-browser", *more]
    for name, value in options.items():
        command += ["--set", f"{name}={value}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        introduced(process, 1)
        yield Web(web_port, Client(port))
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with running_demo() as port, mitmweb(tmp_path, port) as running:
        running.client.begin()
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(chromium: Page) -> Page:
    """An empty page, as large as a laptop's, of somebody who likes it light."""
    chromium.go("about:blank")
    chromium.resize(1280, 860)
    chromium.prefer("light")
    chromium.errors()  # what the browser has complained of until now
    return chromium


class TestApi:
    def test_the_page_is_only_for_who_has_the_password(self, web: Web) -> None:
        for path in ("/mcp", "/mcp/state", "/mcp/page.js"):
            assert web.api("GET", path, password="wrong")[0] == 403
            assert web.api("GET", path)[0] == 200

    def test_its_state_tells_all_that_the_page_shows(self, web: Web) -> None:
        web.client.tools()
        web.client.call("file_read")
        web.client.call("file_delete")
        [state] = web.state()["listeners"]
        tools = {tool["name"]: tool for tool in state["tools"]}
        assert tools["file_read"]["calls"] == 1
        assert tools["file_delete"]["why"] == "denied by ^(file|email)_(delete|send)$"
        assert tools["file_delete"]["refused"] == 1
        assert (state["lists"], state["calls"], state["refused"]) == (1, 1, 1)
        assert state["saved_bytes"] > 1000

    def test_a_bad_pattern_is_refused_and_the_old_filter_stays(self, web: Web) -> None:
        before = web.client.tools()
        status, text = web.api("PUT", "/options", {"deny": ["^[a-z"]})
        assert status == 400
        assert 'Invalid regex pattern in deny list: "^[a-z"' in text
        assert web.option("deny") == [DENY]
        assert web.client.tools() == before
        assert web.client.call("file_delete")["error"]["code"] == -32601

    def test_a_good_pattern_is_adopted_at_once(self, web: Web) -> None:
        assert web.api("PUT", "/options", {"deny": ["^file_"]})[0] == 200
        assert "table_list" in web.client.tools()
        assert "file_read" not in web.client.tools()
        assert "error" not in web.client.call("table_list")

    def test_the_commands_have_names_that_mitmweb_takes(self, web: Web) -> None:
        web.client.call("file_delete")
        assert any("file_delete: hidden" in line for line in web.command("mcp.tools"))
        assert any("refused: 1" in line for line in web.command("mcp.stats"))
        assert web.command("mcp.sessions")[0].endswith("0 sessions")


RULES = """
interceptor:
  rules:
    - id: "%s"
      conditions: [tool_equals: file_read, param_matches: {field: arguments.path, pattern: "^%s"}]
      actions: [block: not there]
"""
CUT_NAMES = """
return [...document.querySelectorAll("td code")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0)
  .map((one) => one.textContent);
"""


class TestBrowser:
    def test_flows_are_marked_commented_and_readable(self, web: Web, page: Page) -> None:
        web.client.tools()
        web.client.call("file_delete")
        web.client.call("file_read")
        page.go(web.url(f"/?token={PASSWORD}"))
        page.wait_for("/mcp", "🙈", "🚫")
        flows = json.loads(web.api("GET", "/flows")[1])
        [refused] = [flow for flow in flows if "not found" in flow["comment"]]
        [listed] = [flow for flow in flows if "hidden" in flow["comment"]]

        open_flow(web, page, refused["id"], "comment")
        page.wait_for("not found: file_delete (denied by ^(file|email)_(delete|send)$)")
        open_flow(web, page, refused["id"], "request")
        page.wait_for("MCP", "request tools/call", "tool: file_delete")
        open_flow(web, page, refused["id"], "response")
        page.wait_for("MCP", "code: -32601", "Tool not found: file_delete")
        open_flow(web, page, listed["id"], "response")
        page.wait_for("MCP", "- file_read(path, first?)")
        assert "- file_delete" not in page.text

    def test_an_open_stream_is_seen_while_it_goes_on(self, tmp_path: Path, page: Page) -> None:
        need("mcp1")
        sse = ("--transport", "sse")
        with (
            upstream("mcp1", *sse) as server,
            mitmweb(tmp_path, server.port) as web,
            client("mcp1", f"http://127.0.0.1:{web.client.port}/sse", *sse) as speaker,
        ):
            speaker.do({"list": "tools"})
            page.go(web.url(f"/?token={PASSWORD}"))
            flows = json.loads(web.api("GET", "/flows")[1])
            [stream] = [flow for flow in flows if flow["request"]["method"] == "GET"]
            open_flow(web, page, stream["id"], "response")
            page.wait_for("MCP", "event 1: endpoint", "- read_file(path, lines?)")
            assert "contents of seen.txt" not in page.text
            speaker.do({"call": "read_file", "arguments": {"path": "seen.txt"}})
            page.wait_for("contents of seen.txt")
            speaker.do({"call": "drop_database"})
            page.wait_for("Tool not found: drop_database")
            [session] = web.state()["listeners"][0]["sessions"]
            assert (session["revision"], session["seconds_ago"]) == (REVISION, None)

    def test_the_page_updates_itself(self, web: Web, page: Page) -> None:
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "Nothing has been refused.", "file_delete")
        assert figure(page, "Refused") == "0"
        web.client.call("file_delete")
        web.client.call("file_read")
        page.until(lambda: figure(page, "Refused") == "1", "refusal")
        assert figure(page, "Calls") == "1"
        assert row(page, "hidden-tool", "file_delete")[1:] == [
            "denied by ^(file|email)_(delete|send)$",
            "1",
            "Show",
        ]
        assert row(page, "shown-tool", "file_read")[1] == "1"
        assert page.errors() == []

    def test_rules_are_shown_with_their_hits_and_after_an_edit(
        self, tmp_path: Path, page: Page
    ) -> None:
        rules = tmp_path / "rules.yaml"
        rules.write_text(RULES % ("no <b>etc</b>", "/etc"))
        with (
            running_demo() as port,
            mitmweb(tmp_path, port, ("--set", f"rules={rules}")) as web,
        ):
            web.client.begin()
            page.go(web.url(f"/mcp?token={PASSWORD}"))
            page.wait_for("Live", "Rules", "no <b>etc</b>")
            assert row(page, "rule", "no <b>etc</b>")[1] == "0"
            blocked = web.client.ask("tools/call", name="file_read", arguments={"path": "/etc/x"})
            assert blocked["error"]["data"] == {"rule": "no <b>etc</b>", "action": "block"}
            page.until(lambda: row(page, "rule", "no <b>etc</b>")[1] == "1", "hit")
            flows = json.loads(web.api("GET", "/flows")[1])
            assert any("no <b>etc</b>" in flow["comment"] for flow in flows)
            rules.write_text(RULES % ("no-home", "/home"))
            page.wait_for("no-home")
            page.until(lambda: "no <b>etc</b>" not in rule_table(page), "edit")
            assert page.errors() == []

    def test_mitmwebs_menu_leads_to_it_and_its_list_has_room_for_comments(
        self, web: Web, page: Page
    ) -> None:
        web.client.call("file_read")
        page.go(web.url(f"/?token={PASSWORD}"))
        page.wait_for("tools/call file_read: forwarded")
        width = page.run(
            "return document.querySelector('td.col-comment').getBoundingClientRect().width"
        )
        assert width > 400
        page.find("a#mcp-tool-filter").click()
        page.wait_for("Live", "Exposed tools")

    @pytest.mark.parametrize("width", [390, 1440])
    def test_nothing_is_cut_at_the_width_of(self, width: int, web: Web, page: Page) -> None:
        """No name is broken beside empty space, and nothing reaches out of the page."""
        web.client.call("file_read")
        web.client.call("no_such_tool_" + "with_a_long_name_" * 5)
        web.client.call("x" * 120)
        page.resize(width, 900)
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "no_such_tool_")
        assert page.run("return document.documentElement.scrollWidth") == width
        lines = "return [...document.querySelectorAll('.hidden-tool code, .shown-tool code')]"
        heights = page.run(f"{lines}.map(one => one.getBoundingClientRect().height)")
        assert max(heights) < 25  # one line
        cut = "[...document.querySelectorAll('td, th')].filter(one => one.scrollWidth > "
        assert page.run(f"return {cut} one.clientWidth + 1).map(one => one.innerText)") == []

    def test_a_keyboard_hides_a_tool_and_keeps_its_place(self, web: Web, page: Page) -> None:
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "file_read")
        button = 'button[aria-label="Hide file_read"]'
        page.run(f"document.querySelector('{button}').focus()")
        page.find(button).type("\ue007")
        page.wait_for("1 tool to hide")
        focused = "return document.activeElement.getAttribute('aria-label')"
        assert page.run(focused) == "Show file_read"
        page.find('button[aria-label="Discard the changes"]').click()
        page.find(button)

    def test_it_shows_who_calls_what_and_the_context_saved(self, web: Web, page: Page) -> None:
        web.client.tools()
        for name in ("file_read", "file_read", "file_delete"):
            web.client.call(name)
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "Who calls what", "file_read 2", "Context saved: ")
        labels = "return [...document.querySelectorAll('svg')].map(x => x.ariaLabel)"
        assert [label.split(":")[0].split(",")[0] for label in page.run(labels)] == [
            "Last ten minutes",
            "Median time of the upstream",
            "Context saved",
        ]

    def test_it_can_be_read_by_light_and_by_dark(
        self, web: Web, page: Page, tmp_path: Path
    ) -> None:
        """With MCP_TOOL_FILTER_PICTURES in the environment it makes the README's picture."""
        if "MCP_TOOL_FILTER_PICTURES" in os.environ:
            _do_some_work(web.client)
            page.resize(1440, 1100)
        web.client.tools()
        for name in ("file_read", "web_search", "file_delete", "drop_database", "no_such_tool"):
            web.client.call(name)
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "no_such_tool")
        colours = {}
        for scheme in ("dark", "light"):
            page.prefer(scheme)
            colours[scheme] = page.run(COLOURS)
        assert all(contrast(text, back) >= 4.5 for text, back in colours["light"]), colours
        assert all(contrast(text, back) >= 4.5 for text, back in colours["dark"]), colours
        assert colours["light"] != colours["dark"]
        picture = PICTURE if "MCP_TOOL_FILTER_PICTURES" in os.environ else tmp_path / "page.png"
        page.screenshot(picture)
        assert picture.stat().st_size > 10_000

    @pytest.mark.parametrize("width", [390, 1440])
    def test_nothing_is_cut_off(self, width: int, web: Web, page: Page, tmp_path: Path) -> None:
        web.client.call("file_read")
        page.resize(width, 900)
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "file_delete", "tools/call file_read")
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert page.run(CUT_NAMES) == []
        page.screenshot(tmp_path / "page.png")

    def test_messages_are_shown_as_they_happen_and_lead_to_their_flow(
        self, web: Web, page: Page
    ) -> None:
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "Nothing has passed yet." if not web.state()["recent"] else "ms")
        web.client.call("file_read")
        web.client.call("file_delete")
        page.wait_for("tools/call file_read", "refused (^(file|email)_(delete|send)$)")
        [flow] = [one["flow"] for one in web.state()["recent"] if one["verdict"] == "refused"][:1]
        assert page.run(f"return !!document.querySelector('a[href*=\"{flow}\"]')")
        steps = web.state()["steps"]
        assert sum(step["calls"] for step in steps) >= 1
        assert sum(step["refused"] for step in steps) >= 1

    def test_a_click_hides_a_tool_and_another_takes_it_back(self, web: Web, page: Page) -> None:
        before = web.option("deny")
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "file_read")
        page.find('button[aria-label="Hide file_read"]').click()
        page.wait_for("1 tool to hide, 0 to show", "--deny '^file_read$'")
        assert "file_read" in web.client.tools()  # nothing has changed so far
        page.find('button[aria-label="Apply the changes"]').click()
        page.until(lambda: "file_read" not in web.client.tools(), "hidden tool")
        page.wait_for("The patterns in force were changed here.")
        page.find('button[aria-label="Undo the last change"]').click()
        page.until(lambda: "file_read" in web.client.tools(), "shown tool")
        assert ",".join(web.option("deny")) == ",".join(before)
        assert page.errors() == []

    def test_a_click_shows_a_hidden_tool_alone(self, web: Web, page: Page) -> None:
        page.go(web.url(f"/mcp?token={PASSWORD}"))
        page.wait_for("Live", "file_delete")
        page.find('button[aria-label="Show file_delete"]').click()
        page.find('button[aria-label="Apply the changes"]').click()
        page.until(lambda: "file_delete" in web.client.tools(), "shown tool")
        assert "email_send" not in web.client.tools()

    def test_without_the_token_the_page_says_how_to_get_in(self, web: Web, page: Page) -> None:
        page.go(web.url("/mcp"))
        page.wait_for("This page needs mitmweb's token")
        assert "file_delete" not in page.text

    def test_the_list_of_flows_shows_tool_and_verdict(self, web: Web, page: Page) -> None:
        web.client.call("file_read")
        page.go(web.url(f"/?token={PASSWORD}"))
        page.wait_for("tools/call file_read: forwarded")

    def test_patterns_can_be_edited_and_a_bad_one_is_not_adopted(
        self, web: Web, page: Page
    ) -> None:
        before = web.client.tools()
        edit_deny(web, page, "[")
        page.until(lambda: web.state()["refused_edit"], "refused edit")
        page.go(web.url("/mcp"))
        page.wait_for("not adopted", 'Invalid regex pattern in deny list: "["', "file_delete")
        assert web.client.tools() == before

        edit_deny(web, page, "^table_")
        page.until(lambda: web.option("deny") == ["^table_"], "edit")
        assert "file_delete" in web.client.tools()
        page.go(web.url("/mcp"))
        page.wait_for("Live", "denied by ^table_")
        assert "not adopted" not in page.text


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
COLOURS = """
const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
const card = getComputedStyle(document.querySelector("section")).backgroundColor;
return ["h2", "dt", ".quiet", ".hidden-tool code", ".shown-tool code", "td"].map(
  css => [rgb(getComputedStyle(document.querySelector(`section ${css}`)).color), rgb(card)]);
"""


def _do_some_work(client: Client) -> None:
    """Call tools for a while, so that a picture has something to show."""
    for number in range(60):
        names = ("file_read", "web_search", "table_list", "calendar_list", "web_fetch")
        client.call("file_delete" if number % 9 == 8 else names[number * number % 5])
        if number % 6 == 0:
            client.tools()
        time.sleep(0.3 + 0.3 * (number % 4))


def figure(page: Page, label: str) -> str:
    css = f'[data-figure="{label}"] dd'
    page.find(css)
    # In one order: the page draws itself anew, and what was found may be gone when it is read.
    return str(page.run("return document.querySelector(arguments[0]).innerText", css)).split()[0]


def row(page: Page, kind: str, tool: str) -> list[str]:
    """Return the cells of a tool's row."""
    script = (
        "return [...document.querySelectorAll(`tr.${arguments[0]}`)]"
        ".map(row => [...row.cells].map(cell => cell.innerText))"
    )
    rows: list[list[str]] = page.run(script, kind)
    return next(cells for cells in rows if cells[0] == tool)


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
