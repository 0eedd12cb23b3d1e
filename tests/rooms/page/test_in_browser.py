"""The page in a real browser: long lists, filters in the address, the keyboard, small windows."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.memory import Fetched, example
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.listener import open_listener
from mcp_tool_filter.core.process.statistics import Statistics
from mcp_tool_filter.rooms.page.dashboard import (
    Dashboard,
    Overview,
    Switches,
    dashboard_server,
)
from tests.browser import Page, browser
from tests.rooms.serve.test_serve import command, page_of, serving

pytestmark = pytest.mark.rest
UP, DOWN, END, ENTER, ESCAPE = "\ue013", "\ue015", "\ue010", "\ue007", "\ue00c"
LEFT, RIGHT, SPACE = "\ue012", "\ue014", " "


@dataclass
class Shown:
    """A page of listeners that are not connected to anything, and where it is."""

    board: Dashboard
    address: str
    counts: dict[str, Statistics]

    def note(self, number: int, **more: object) -> None:
        tool, server = f"tool_{number % 300}", f"server-{number % 3}"
        hours, minutes, seconds = 10 + number // 3600, number // 60 % 60, number % 60
        self.board.timeline.note(
            {
                "time": f"2026-11-20T{hours}:{minutes:02}:{seconds:02}.000Z",
                "method": "tools/call", "tool": tool, "server": server, "client": "127.0.0.1:1",
                "verdict": "forwarded", "answered": True, "upstream_ms": 1.5, **more,
            }
        )  # fmt: skip


@contextmanager
def shown(servers: int = 3, tools: int = 300) -> Iterator[Shown]:
    """Serve the page of servers that have tools of the same names."""
    names = [f"tool_{number}" for number in range(tools)]
    fetched = {f"server-{number}": example(*names) for number in range(servers)}
    with page_about(fetched, "^tool_7$") as it:
        yield it


@contextmanager
def page_about(
    fetched: Mapping[str, Fetched], deny: str, problems: Mapping[str, str] | None = None
) -> Iterator[Shown]:
    """Serve the page in a thread, in the order of ``problems``: why a server does not run."""
    config = parse_config(deny=(deny,))
    listeners = {
        name: open_listener(upstream="http://127.0.0.1:9", config=config, fetched=one)
        for name, one in fetched.items()
    }
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    over = threading.Event()

    def edit(deny: list[str], exceptions: list[str]) -> str:
        try:
            config = parse_config({"deny": deny, "except": exceptions or None})
        except StartError as error:
            return str(error)
        for one in listeners.values():
            one.policy.adopt(config)
        return ""

    first = next(iter(listeners.values()))
    counts = {name: Statistics() for name in listeners}
    overview = Overview(
        listeners,
        counts,
        places={name: f"http://127.0.0.1:6280/{name}/mcp" for name in listeners},
        names=lambda: problems or listeners,
        problem_of=lambda name: (problems or {}).get(name) or None,
    )
    snapshots = lambda: [one.snapshot for one in listeners.values()]  # noqa: E731
    switches = Switches(lambda: first.policy.config, snapshots, edit)
    board = Dashboard(overview.as_json, switches, dict, overview.definition)

    async def serve() -> None:
        async with dashboard_server(board, 0, said.put):
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        address = said.get(timeout=20).partition(" ")[2]
        yield Shown(board, address, counts)
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(chromium: Page) -> Iterator[Page]:
    chromium.go("about:blank")
    chromium.resize(1280, 860)
    yield chromium
    errors = chromium.errors()  # also of a page whose filter has ended
    assert [one for one in errors if "Failed to load resource" not in one] == []


def nodes(page: Page) -> int:
    return int(page.run("return document.querySelectorAll('*').length"))


def scroll_to_end(page: Page, tab: str) -> None:
    page.run(f"const list = document.querySelector('#{tab} .list'); list.scrollTop = 1e9")


def press(page: Page, keys: str) -> None:
    """Press keys where the focus is."""
    steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
    actions = [{"type": "key", "id": "keyboard", "actions": steps}]
    page.order("POST", "/actions", {"actions": actions})


def focus(page: Page, what: str) -> str:
    return str(page.run(f"return String(document.activeElement.{what})"))


def test_ten_thousand_messages_and_900_tools_are_few_nodes(page: Page) -> None:
    """Only what is visible is in the document; all of it can be reached."""
    with shown() as it:
        for number in range(10_050):
            it.note(number)
        page.go(it.address)
        page.wait_for("Live", "10,000 messages", "tool_149")
        assert nodes(page) < 3000
        scroll_to_end(page, "activity")
        page.wait_for("10:00:50")
        assert nodes(page) < 3000
        row = "document.querySelector('#activity .rows').lastElementChild"
        assert page.run(f"return {row}.getAttribute('aria-rowindex')") == "10001"
        page.find("#tab-tools").click()
        page.wait_for("900 tools, 897 exposed", "tool_0")
        assert nodes(page) < 3000
        scroll_to_end(page, "tools")
        page.wait_for("tool_299")
        assert nodes(page) < 3000


def test_new_messages_move_nothing_that_is_looked_at(page: Page) -> None:
    with shown() as it:
        for number in range(500):
            it.note(number)
        page.go(it.address)
        page.wait_for("Live", "500 messages")
        page.run("document.querySelector('#activity .list').scrollTop = 2803")
        page.wait_for("10:06:")
        first = "document.elementFromPoint(640, 600).closest('.row').dataset.key"
        before = page.run(f"return {first}")
        for number in range(30):
            it.note(500 + number)
        page.wait_for("530 messages")
        assert page.run(f"return {first}") == before
        page.find("#pause").click()
        it.note(530)
        page.wait_for("Resume (1 new)", "530 messages")
        page.find("#pause").click()
        page.wait_for("531 messages")


def test_filters_live_in_the_address(page: Page) -> None:
    with shown() as it:
        for number in range(300):
            it.note(number, **({"verdict": "refused", "why": "denied"} if number % 10 == 0 else {}))
        page.go(it.address)
        page.wait_for("Live", "300 messages")
        page.find("#filters [name=outcome]").type("refused")
        page.wait_for("30 of 300 messages")
        page.find("[data-server='server-1']").click()
        page.wait_for("10 of 300 messages")
        page.find("#filters [name=tool]").type("tool_1")
        page.wait_for("5 of 300 messages")
        page.find("#filters [type=search]").type("tool_10")
        page.wait_for("2 of 300 messages")
        address = page.run("return location.href")
        assert "token" not in address
        for part in ("server=server-1", "outcome=refused", "tool=tool_1", "q=tool_10"):
            assert part in address
        page.go("about:blank")
        page.go(address)
        page.wait_for("Live", "2 of 300 messages")
        assert page.run("return document.querySelector('#filters [name=tool]').value") == "tool_1"
        page.find("#clear").click()
        page.wait_for("300 messages")
        assert page.run("return location.search") == ""
        page.find("#tab-tools").click()
        page.find("#tools [aria-label='Search the tools']").type("tool_29")
        page.wait_for("33 of 900 tools")
        page.run("document.querySelectorAll('#tools .head button')[2].click()")
        assert page.run("return location.search") == "?tab=tools&search=tool_29&sort=-tokens"
        page.run("history.back()")
        page.until(lambda: page.run("return location.search") == "", "the view before")
        page.wait_for("300 messages")


def test_a_keyboard_reaches_everything(page: Page) -> None:
    with shown() as it:
        for number in range(300):
            it.note(number)
        page.go(it.address)
        page.wait_for("Live", "300 messages")
        page.run("document.querySelector('#activity .row[tabindex=\"0\"]').focus()")
        press(page, DOWN + DOWN)
        assert focus(page, "ariaRowIndex") == "4"
        press(page, ENTER)
        page.wait_for("tools/call tool_297", "Upstream")
        assert focus(page, "id") == "panel"
        press(page, ESCAPE)
        assert focus(page, "ariaRowIndex") == "4"
        assert page.run("return document.getElementById('panel').hidden")
        press(page, END)
        assert focus(page, "ariaRowIndex") == "301"
        press(page, "/")
        assert focus(page, "ariaLabel") == "Search the messages"
        page.run("document.getElementById('tab-activity').focus()")
        press(page, RIGHT)
        assert (focus(page, "id"), focus(page, "ariaSelected")) == ("tab-tools", "true")
        page.wait_for("900 tools")
        page.run("document.querySelector('#tools .row[tabindex=\"0\"]').focus()")
        press(page, DOWN + SPACE)
        page.wait_for("1 tool to hide")
        assert focus(page, "dataset.key").endswith("tool_1")
        press(page, ENTER)
        page.wait_for("Definition", '"inputSchema"')


def test_all_shown_tools_are_hidden_at_once(page: Page) -> None:
    with shown(servers=1) as it:
        page.go(f"{it.address}&tab=tools&search=tool_29")
        page.wait_for("Live", "11 of 300 tools, 11 exposed")
        page.find("#hide-all").click()
        page.wait_for("11 tools to hide, 0 to show")
        page.find("button[aria-label='Apply the changes']").click()
        page.wait_for("11 of 300 tools, 0 exposed", "Now active")
        page.find("button[aria-label='Undo the last change']").click()
        page.wait_for("11 of 300 tools, 11 exposed")


def test_an_edited_definition_is_beside_the_servers_own(tmp_path: Path) -> None:
    text = f"""dashboard = 0
[servers.files]
{command("read_file,write_file")}
[servers.files.tools.read_file]
name = "fetch_file"
"""
    with serving(tmp_path, text) as it, page_of(it, tmp_path) as page:
        page.wait_for("→ fetch_file", "edited")
        page.find("#tools [name=shown]").type("Edited")
        page.wait_for("1 of 2 tools")
        page.find("#tools .rows .row").click()
        page.wait_for("The server's own", "What clients see")
        own, edited = page.run(BESIDE)
        assert (json.loads(own)["name"], json.loads(edited)["name"]) == ("read_file", "fetch_file")


BESIDE = "return [...document.querySelectorAll('.beside pre')].map((one) => one.textContent)"


def test_the_servers_are_in_the_order_of_the_file_also_broken_ones(tmp_path: Path) -> None:
    """A pattern for all servers is dead only if it matches nowhere; an empty start has URLs."""
    text = f"""dashboard = 0
deny = ["^delete_", "^nowhere$"]
[servers.last]
{command("read_file")}
[servers.broken]
url = "http://127.0.0.1:1/mcp"
[servers.first]
{command("read_file,delete_file")}
[profiles.some]
servers = ["first"]
"""
    with serving(tmp_path, text) as it, page_of(it, tmp_path) as page:
        page.find("#tab-activity").click()
        url = f"http://127.0.0.1:{it.port}/last/mcp"
        page.wait_for("No messages yet.", url, "Failed to connect to upstream MCP")
        names = "return [...document.querySelectorAll('[data-server]')].map(x => x.dataset.server)"
        assert page.run(names) == ["", "last", "broken", "first", "merged", "some"]
        assert page.run(
            "return document.querySelector('[data-server=broken]').ariaLabel"
        ).startswith("broken, broken, 0 calls, Failed to connect")
        page.find("[data-server=last]").click()
        page.wait_for(url)
        warned = page.run("return document.getElementById('about').innerText")
        assert '"^nowhere$" matches no tool' in warned
        assert "^delete_" not in warned
        it.at("first").calls("read_file")
        page.find("[data-server='']").click()
        page.wait_for("tools/call read_file", "1 message")
        assert page.run("return document.documentElement.scrollWidth") == 1280
