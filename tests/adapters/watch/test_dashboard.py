"""The page: what it changes, who may see it, and what it shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.watch.dashboard import Dashboard, Switches, answer_page
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.choice import NOTHING
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.snapshot import Standing
from tests.browser import Page, browser
from tests.cli.launched import RunningLauncher, launched
from tests.mcp_upstream import RESULT, mcp_upstream, tool
from tests.raw_client import MCP_HEADERS, RawClient, post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, RawRequest, answer


# What the page can change: previews, edits of the deny patterns, and undoing them
class Edited:
    """A filter whose patterns a dashboard edits."""

    def __init__(self, *deny: str, allow: Sequence[str] = ()) -> None:
        config = parse_config(deny=deny or None, allow=allow or None)
        self.policy = PolicyInForce(
            config=config, fetched=example("read_file", "delete_file", "rm")
        )
        self.switches = Switches(
            lambda: self.policy.config, lambda: [self.policy.snapshot], self._edit
        )
        self.board = Dashboard(lambda: {"listeners": []}, self.switches)

    def _edit(self, deny: list[str], exceptions: list[str]) -> str:
        try:
            given = {"deny": deny, "except": exceptions or None}
            self.policy.adopt(parse_config(given))
        except StartError as error:
            return str(error)
        return ""

    @property
    def deny(self) -> object:
        return self.board.state()["deny"]


def test_a_preview_shows_the_patterns_and_the_command_and_changes_nothing() -> None:
    edited = Edited("^delete_")
    shown = edited.switches.preview(hide=["read_file"], show=["delete_file"])
    assert shown == {
        "deny": ["^delete_", "^read_file$"],
        "except": ["^delete_file$"],
        "command": "--deny '^delete_' --deny '^read_file$' --except '^delete_file$'",
    }
    assert edited.deny == ["^delete_"]


def test_an_exception_can_be_applied_and_undone(caplog: pytest.LogCaptureFixture) -> None:
    """A pattern stays as it was typed: after a restart, it also hides what is new."""
    edited = Edited("^delete_")
    assert edited.switches.apply(["^delete_"], ["^delete_file$"]) == {"problem": ""}
    assert (edited.deny, edited.board.state()["except"]) == (["^delete_"], ["^delete_file$"])
    assert edited.policy.snapshot.standing("delete_file") is Standing.ALLOWED
    assert edited.switches.apply(["^delete_", "^rm$"]) == {"problem": ""}
    assert edited.board.state()["except"] == ["^delete_file$"]
    for exceptions in (["^delete_file$"], []):
        assert edited.switches.undo() == {"problem": ""}
        assert (edited.deny, edited.board.state()["except"]) == (["^delete_"], exceptions)
    assert caplog.messages == [
        f"The patterns were changed on the page: --deny '^delete_'{more}"
        for more in (
            " --except '^delete_file$'",
            " --deny '^rm$' --except '^delete_file$'",
            " --except '^delete_file$'",
            "",
        )
    ]


def test_the_command_that_keeps_the_current_patterns_can_be_pasted_into_a_shell() -> None:
    """A pattern may have a quote in it."""
    edited = Edited("^it's", "^rm$")
    command = edited.board.state()["command"]
    assert isinstance(command, str)
    assert shlex.split(command) == ["--deny", "^it's", "--deny", "^rm$"]


def test_the_last_hidden_tool_can_be_shown_and_hidden_again() -> None:
    """Without any pattern the edit was refused: an empty deny list is a mistake."""
    edited = Edited("^rm$")
    shown = edited.switches.preview(hide=[], show=["rm"])
    assert shown == {"deny": ["(?!)"], "except": [], "command": "--deny '(?!)'"}
    assert edited.switches.apply(["(?!)"]) == {"problem": ""}
    assert edited.switches.preview(hide=["rm"], show=[])["deny"] == ["^rm$"]
    assert edited.switches.undo() == {"problem": ""}
    assert edited.deny == ["^rm$"]


def test_an_edit_can_be_undone_where_there_was_no_pattern_before() -> None:
    edited = Edited(allow=["^read"])
    assert edited.switches.apply(["^read_file$"]) == {"problem": ""}
    assert edited.switches.undo() == {"problem": ""}
    assert edited.deny == ["(?!)"]


@pytest.mark.parametrize(("pattern", "why"), [("(a+)+", "Unsafe regex pattern"), ("^delete_", "")])
def test_an_edit_that_is_refused_or_changes_nothing_is_no_step(pattern: str, why: str) -> None:
    edited = Edited("^delete_")
    assert why in str(edited.switches.apply([pattern])["problem"])
    assert (edited.deny, edited.board.state()["can_undo"]) == (["^delete_"], False)


def test_the_number_of_steps_back_is_bounded() -> None:
    edited = Edited("^delete_")
    for number in range(200):
        edited.switches.apply([f"^tool_{number}$"])
    steps = 0
    while edited.board.state()["can_undo"]:
        edited.switches.undo()
        steps += 1
    assert 0 < steps < 100


def test_a_request_of_the_page_must_have_lists_of_names() -> None:
    board = Edited("^delete_").board

    def said(name: str, **more: object) -> tuple[int, dict[str, object]]:
        answer = answer_page(board, "POST", f"/mcp/{name}", json.dumps(more).encode())
        return answer.status, json.loads(answer.body) if answer.status == 200 else {}

    wrong: list[dict[str, object]] = [{}, {"deny": "^rm$"}, {"deny": ["^rm$", 1]}, {"deny": None}]
    for more in wrong:
        assert said("apply", **more) == (400, {})
    assert said("no_such_change") == (400, {})
    assert said("apply", deny=["^rm$"]) == (200, {"problem": ""})
    assert said("preview", hide=[], show=["rm"])[1]["deny"] == [NOTHING]
    assert said("undo") == (200, {"problem": ""})
    assert board.state()["deny"] == ["^delete_"]


# The page without mitmweb: behind a token, for this machine's own browser only
CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s"}}'
TOOLS = [tool("read"), tool("rm")]


def asked(
    port: int, path: str, method: str = "GET", body: str = "", **headers: str
) -> tuple[int, str, str | None]:
    """Ask the dashboard; its status, body and cookie."""
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, named)
    answer = connection.getresponse()
    text, cookie = answer.read().decode(), answer.getheader("set-cookie")
    connection.close()
    return answer.status, text, cookie


async def address_of(it: RunningLauncher) -> tuple[int, str]:
    found = await it.says(r"Dashboard: http://127\.0\.0\.1:(\d+)(/mcp\?token=\S+)")
    return int(found[1]), found[2]


class Visitor:
    """A browser that was let in by the address of the page."""

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path
        status, _, cookie = asked(port, path)
        assert status == 303
        self.cookie = (cookie or "").partition(";")[0]

    def ask(
        self, name: str, headers: dict[str, str] | None = None, **said: object
    ) -> tuple[int, Any]:
        """Send what the page sends; without anything to say, read."""
        method, body = ("POST", json.dumps(said)) if said else ("GET", "")
        headers = {"Cookie": self.cookie} | (headers or {})
        status, text, _ = asked(self.port, f"/mcp/{name}", method, body, **headers)
        return status, json.loads(text) if status == 200 else text

    def change(self, name: str, **said: object) -> dict[str, Any]:
        status, found = self.ask(name, None, **said)
        assert status == 200, found
        return dict(found)


class Board(Visitor):
    """The page of a filter in a process of its own, and a client."""

    def __init__(self, it: RunningLauncher, client: RawClient, port: int, path: str) -> None:
        super().__init__(port, path)
        self.it, self.client = it, client

    def exposed(self) -> set[str]:
        [listener] = self.ask("state")[1]["listeners"]
        return {one["id"] for one in listener["tools"] if one["exposed"]}

    async def calls(self, name: bytes, body: bytes = CALL, headers: bytes = MCP_HEADERS) -> bytes:
        return (await self.client.ask(post(body % name, headers=headers))).body


@asynccontextmanager
async def opened(
    home: Path, *flags: str, tools: Sequence[bytes] = TOOLS, **how: Any
) -> AsyncIterator[Board]:
    async with mcp_upstream(tools=tools, **how) as upstream:
        way = () if "--server" in flags else ("-u", upstream.url)
        if "--config" in flags:
            file = Path(flags[flags.index("--config") + 1])
            file.write_text(file.read_text().replace("UPSTREAM", upstream.url))
        words = (*way, *(flags or ("-d", "^rm$")), "--dashboard", "0")
        async with launched(*words, home=home) as it, raw_client(await it.serving()) as client:
            yield Board(it, client, *await address_of(it))


async def test_the_dashboard_shows_and_changes_the_filter(tmp_path: Path) -> None:
    async with opened(tmp_path) as board:
        await board.calls(b"rm")
        state = board.ask("state")[1]
        assert (state["recent"][0]["tool"], state["deny"]) == ("rm", ["^rm$"])
        assert board.change("apply", deny=["^read$"]) == {"problem": ""}
        assert b"Tool not found" in await board.calls(b"read")
        assert "Unsafe regex" in board.change("apply", deny=["(a+)+"])["problem"]
        for nonsense in ("[1", "[]", "[" * 200_000):
            said = asked(board.port, "/mcp/apply", "POST", nonsense, Cookie=board.cookie)
            assert said[0] == 400
        assert asked(board.port, "//[", Cookie=board.cookie)[0] == 400
        assert asked(board.port, "/mcp/undo", "POST", "{}", Cookie=board.cookie)[0] == 200
        assert b"Tool not found" not in await board.calls(b"read")
        assert "There is no config file" in board.change("save", token="")["problem"]


async def test_a_tool_that_a_glob_hides_can_be_shown_and_hidden_again(tmp_path: Path) -> None:
    """The glob stayed in force, and to undo the change made it a regex: r* is another one."""
    tools = [tool("rm"), tool("read"), tool("write")]
    async with opened(tmp_path, "--deny-glob", "r*", tools=tools) as board:
        preview = board.change("preview", hide=[], show=["rm"])
        assert preview["except"] == ["^rm$"]
        for wanted in (preview, {"deny": ["^read$"]}):
            assert board.change("apply", **wanted) == {"problem": ""}
            assert board.exposed() == {"rm", "write"}
        for _ in range(2):
            assert board.change("undo", once=True) == {"problem": ""}
        assert board.exposed() == {"write"}
        assert "Unsafe regex" in board.change("apply", deny=["(a+)+"])["problem"]
        assert board.exposed() == {"write"}
        assert b"Tool not found" in await board.calls(b"rm")


@pytest.mark.parametrize("server", [True, False])
async def test_the_patterns_of_the_page_can_be_saved_in_the_config_file(
    server: bool, tmp_path: Path
) -> None:
    """A server that is started by its name keeps the allow list of all servers."""
    file = tmp_path / "c.toml"
    file.write_text("allow = 'r[me]'  # mine\n")
    if server:
        file.write_text(f"{file.read_text()}[servers.s]\nurl = 'UPSTREAM'\nallow = '^[rw]'\n")
    flags = ["--config", str(file), *(["--server", "s"] if server else []), "--deny", "^x"]
    async with opened(tmp_path, *flags, tools=[tool("rm"), tool("read"), tool("write")]) as board:
        before = file.read_text()
        assert board.change("apply", deny=["^x", "^rm$"]) == {"problem": ""}
        assert board.exposed() == {"read"}
        assert board.ask("state")[1]["file"] == str(file)
        found = board.change("save", token="")
        assert (found["problem"], found["note"]) == ("", "")
        assert asked(board.port, "/mcp/save", "POST", '{"token":""}')[0] == 403
        assert file.read_text() == before
        assert board.change("save", token=found["token"])["saved"]
        assert file.read_text() == f"{before}deny = ['^rm$']\n"


async def test_the_dashboard_needs_its_token_and_a_local_page(tmp_path: Path) -> None:
    async with opened(tmp_path) as board:
        headers: dict[str, str]
        for path, headers in (
            ("/mcp", {}),
            ("/mcp/state", {}),
            ("/mcp?token=wrong", {}),
            ("/mcp/state", {"Cookie": f"mcp_tool_filter_token_{board.port}=wrong"}),
            (board.path, {"Host": "evil.example"}),
            (board.path, {"Origin": "http://evil.example"}),
            (board.path, {"Sec_Fetch_Site": "cross-site"}),
            (board.path, {"Sec_Fetch_Site": "same-site"}),
        ):
            status, text, cookie = asked(board.port, path, **headers)
            assert (status, cookie) == (403, None), (path, headers)
            assert "rm" not in re.sub(r"<[^>]*>|form|Form", "", text)


async def test_strangers_cannot_make_the_dashboard_read_a_body(tmp_path: Path) -> None:
    async with opened(tmp_path) as board:
        for fields, status in (
            (b"Host: localhost\r\nContent-Length: 1000", 403),
            (b"Host: evil.example\r\nContent-Length: 20000000", 403),
            (b"Host: localhost\r\nCookie: %b\r\nContent-Length: 262145", 413),
        ):
            named = fields.replace(b"localhost", b"127.0.0.1:%d" % board.port)
            named = named.replace(b"%b", board.cookie.encode())
            async with raw_client(board.port) as client:
                head = b"POST /mcp/apply HTTP/1.1\r\n%b\r\n\r\n" % named
                assert (await client.ask(head)).status == status, fields


async def test_two_dashboards_can_be_open_in_one_browser(tmp_path: Path) -> None:
    """A browser sends the cookies of one port to all others of the same host."""
    async with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        sent = f"{one.cookie}; {two.cookie}"
        for board in (one, two):
            assert asked(board.port, "/mcp/state", Cookie=sent)[0] == 200
            for other in ("/state", "/x/state", "/mcp/x/state"):
                assert asked(board.port, other, Cookie=sent)[0] == 404


async def test_a_taken_port_stops_the_start(tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        port = upstream.url.rpartition(":")[2]
        flags = ["-u", upstream.url, "-d", "^rm$", "--dashboard", port]
        async with launched(*flags, home=tmp_path) as it:
            assert await it.exit_code() == 1
            what = f"Error: Cannot serve the dashboard on 127.0.0.1:{port}"
            assert f"{what}\nAddress already in use\n" in it.stderr
            assert "Traceback" not in it.stderr


SECRET = "ghp_0123456789abcdefABCD0123"
INTRODUCTION = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"my-editor","version":"1"}}}'
)
PATH_CALL = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read",'
    b'"arguments":{"path":"/etc/%b","token":"' + SECRET.encode() + b'"}}}'
)
FAILED = json.dumps({
    "jsonrpc": "2.0",
    "id": 1,
    "result": {
        "isError": True,
        "content": [{"type": "text", "text": f"No such file, {SECRET}\nat line 7"}],
    },
}).encode()  # fmt: skip


async def failing(request: RawRequest, peer: Peer) -> None:
    """Fail for one path only."""
    await peer.say(answer(FAILED if b"missing" in request.body else RESULT))


def exported(page: Page) -> list[dict[str, Any]]:
    """Return what the button Export saves, which must have no secret."""
    page.run(
        "window.saved = null;"
        "URL.createObjectURL = (file) => { file.text().then((text) => { window.saved = text; });"
        " return 'blob:'; };"
        "HTMLAnchorElement.prototype.click = function () { window.saved_as = this.download; };"
    )
    page.find("#filters button").click()
    text = page.until(lambda: page.run("return window.saved"), "export")
    assert page.run("return window.saved_as") == "mcp-messages.json"
    assert SECRET not in text
    found: list[dict[str, Any]] = json.loads(text)
    for line in found:
        asked = json.loads(line["arguments"])
        assert line["tool"] == "rm" or asked["arguments"]["token"] == "[secret]"
    return found


async def test_failed_calls_are_counted_and_shown_with_their_details(tmp_path: Path) -> None:
    """A tool's error is a JSON-RPC success: it looked like one on the page, too."""
    about = ', "description":"Read a file.\\nMore about it"'
    tools, log = [tool("read", about), tool("rm")], tmp_path / "audit.jsonl"
    flags = ("-d", "^rm$", "--audit-log", str(log))
    async with opened(tmp_path, *flags, tools=tools, respond=failing, session=b"s-1") as board:
        named = MCP_HEADERS + b"Mcp-Session-Id: s-1\r\n"
        await board.client.ask(post(INTRODUCTION))
        for name in (b"missing", b"there"):
            await board.calls(name, PATH_CALL, named)
        await board.calls(b"rm", headers=named)
        state = board.ask("state")[1]
        refused, fine, failed = state["recent"]
        assert (failed["tool_error"], failed["client_name"]) == (True, "my-editor")
        assert failed["problem"] == "No such file, [secret]"
        assert "tool_error" not in fine
        assert refused["verdict"] == "refused"
        assert [step for step in state["steps"] if step["failed"]]
        [caller], [listener] = state["callers"], state["listeners"]
        assert (caller["client"], caller["calls"], caller["failed"]) == ("my-editor", 2, 1)
        [read] = [one for one in listener["tools"] if one["exposed"]]
        assert (read["calls"], read["failed"], listener["failed"]) == (2, 1, 1)
        assert read["description"] == "Read a file."
        assert listener["sessions"][0]["client"] == "my-editor"
        assert SECRET not in json.dumps(state)

        shown = board.change("details", number=failed["number"])
        shown = {name: json.loads(part) for name, part in shown.items()}
        assert shown["arguments"]["arguments"] == {"path": "/etc/missing", "token": "[secret]"}
        assert shown["result"]["content"][0]["text"] == "No such file, [secret]\nat line 7"
        assert "keeps only the last" in str(board.ask("details", number=10_000))
        assert board.ask("details", number="x")[0] == 400
        with browser(tmp_path) as page:
            page.go(f"http://127.0.0.1:{board.port}{board.path}")
            page.wait_for("tool error: No such file", "my-editor", "Read a file.", "1 failed")
            page.wait_for("Live", "Exposed tools", "read", "rm")
            assert "token" not in page.run("return location.href")
            page.find(".failed-message button").click()
            page.wait_for('"path": "/etc/missing"', "at line 7")
            assert len(exported(page)) == 3
            page.find("#filters [type=search]").type("no such")
            page.until(lambda: "refused (" not in page.text, "search")
            page.find("#filters [type=search]").clear()
            page.wait_for("refused (^rm$)")
            page.run(
                "const box = document.querySelector('#filters [name=outcome]');"
                "box.value = 'refused'; box.dispatchEvent(new Event('change'));"
            )
            page.until(lambda: "tool error" not in page.text, "filter")
            page.wait_for("refused (^rm$)")
            [line] = exported(page)
            assert (line["tool"], line["verdict"]) == ("rm", "refused")
            assert SECRET not in page.run("return document.body.innerHTML")
            assert page.errors() == []
    assert '"problem"' not in log.read_text()
    assert "No such file" not in log.read_text()
    assert re.search(
        r'read: tool error: "No such file, \[secret\]"', board.it.stdout + board.it.stderr
    )
