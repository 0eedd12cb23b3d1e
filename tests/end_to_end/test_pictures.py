"""The pictures show what is there today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.rooms.audit.entry import ShownEntry
from mcp_tool_filter.rooms.page.timeline import Timeline
from tests.browser import Page
from tests.end_to_end.web_pages import PASSWORD, Client, Web, open_flow, running_demo
from tests.pictures import check_picture
from tests.rooms.page.test_in_browser import Shown, page_about
from tests.stdio_client import filtered, upstream

pytestmark = pytest.mark.rest


def test_the_picture_of_mitmweb(web: Web, page: Page) -> None:
    """Flows with our marks and comments; at the right, our view of the list."""
    web.client.tools()
    for name in ("file_read", "file_delete", "web_search", "drop_database", "no_such_tool"):
        web.client.call(name)
    page.resize(1280, 640)
    flows = json.loads(web.api("GET", "/flows")[1])
    [listed] = [flow for flow in flows if "hidden" in flow["comment"]]
    page.go(web.url(f"/?token={PASSWORD}"))
    page.wait_for("no_such_tool")
    open_flow(web, page, listed["id"], "response")
    page.wait_for("MCP", "- file_read(path, first?)", "no_such_tool")
    check_picture(page, "mitmweb")


def test_the_picture_of_the_page(page: Page, tmp_path: Path) -> None:
    """Three servers of a file, one of which cannot start; and the calls of a client."""
    with running_demo() as port:
        (tmp_path / "servers.toml").write_text(
            f'deny = ["_(?:delete|send|production)$", "_database$"]\n'
            f'[servers.office]\nurl = "http://127.0.0.1:{port}/mcp"\n'
            f"[servers.notes]\ncommand = {json.dumps(upstream('--tools', 'read_note,add_note'))}\n"
            '[servers.broken]\ncommand = ["no-such-server"]\n'
        )
        flags = ["--port", "0", "--dashboard", "0", "--config", str(tmp_path / "servers.toml")]
        with filtered("serve", *flags, home=tmp_path) as it:
            address = it.says(r"(http://127\.0\.0\.1:\d+/mcp\?token=\S+)")[1]
            client = Client(int(it.says(r"http://127\.0\.0\.1:(\d+)/office/mcp")[1]))
            client.path = "/office/mcp"
            client.begin()
            client.tools()
            for name in ("file_read", "file_delete", "web_search", "drop_database", "no_such_tool"):
                client.call(name)
            page.resize(1280, 560)
            page.go(address)
            page.wait_for("no_such_tool", "15 tools", "Command not found")
            check_picture(page, "page")


TOOLS = {
    "github": "get_issue,list_issues,search_code,create_issue,merge_pull_request,delete_branch",
    "linear": "list_issues,create_issue,update_issue,delete_issue",
    "filesystem": "read_file,list_directory,write_file,move_file,delete_file",
    "postgres": "query,list_tables,describe_table,drop_table",
    "slack": "list_channels,read_channel,post_message,delete_message",
}
HINTS = {"get": "read", "list": "read", "search": "read", "read": "read", "describe": "read"}


def _definition(name: str) -> dict[str, object]:
    verb, _, noun = name.partition("_")
    hint = {"readOnlyHint": True} if verb in HINTS else {"destructiveHint": True}
    words = f"{verb.capitalize()} {noun.replace('_', ' ') or 'the database'}."
    schema = {"type": "object", "properties": {"name": {"type": "string", "description": words}}}
    return {"name": name, "description": words, "inputSchema": schema, "annotations": hint}


def _fetched(names: str) -> Fetched:
    tools = [_definition(name) for name in names.split(",")]
    page = {"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}
    return Fetched(server_name="demo", server_version="1", pages=(json.dumps(page).encode(),))


def _fill(it: Shown) -> None:
    """Note what two clients do in ten minutes."""
    now = [0.0]
    it.board.timeline = timeline = Timeline(clock=lambda: now[0])
    calls = [(server, tool) for server, names in TOOLS.items() for tool in names.split(",")]
    for number in range(240):
        now[0] = 2.4 * number
        server, tool = calls[number * 7 % len(calls)]
        client = "Claude Code" if number % 3 else "Cursor"
        entry: dict[str, object] = {
            "time": f"2026-11-20T10:{number // 25:02}:{number * 2 % 60:02}.000Z",
            "method": "tools/call", "tool": tool, "server": server, "session": client,
            "client": "127.0.0.1:50000", "transport": "http", "bytes": 120,
        }  # fmt: skip
        if tool.startswith(("delete", "drop")):
            entry |= {"verdict": "refused", "why": "denied", "pattern": "^(delete|drop)_"}
            it.counts[server].refused += 1
            it.counts[server].refused_calls[tool] += 1
        else:
            took = 3.5 + number % 11 * 1.7
            entry |= {"verdict": "forwarded", "answered": True, "upstream_ms": took}
            it.counts[server].calls[tool] += 1
        if tool == "query":
            entry["tool_error"] = True
            it.counts[server].failed_calls[tool] += 1
        shown = ShownEntry(entry, client, json.dumps({"name": tool, "arguments": {"name": "x"}}))
        shown.problem = "syntax error at or near" if "tool_error" in entry else ""
        shown.result = json.dumps({"content": [{"type": "text", "text": "done"}]})
        timeline.note(shown)


def test_the_pictures_of_a_message_and_of_a_phone(page: Page) -> None:
    """A message's details in dark colours; the tools on a phone."""
    fetched = {name: _fetched(tools) for name, tools in TOOLS.items()}
    problems = dict.fromkeys(TOOLS, "") | {"jira": "Failed to connect. Connection refused"}
    with page_about(fetched, "^(delete|drop)_", problems) as it:
        _fill(it)
        page.go(it.address)
        page.wait_for("Live", "240 messages", "Connection refused")
        page.prefer("dark")
        page.find(".rows .ok").click()
        page.wait_for("Request", "Answer")
        check_picture(page, "page-message")
        page.prefer("light")
        page.resize(390, 844)
        page.find("button[aria-label='Close the details']").click()
        page.find("#tab-tools").click()
        page.wait_for("23 tools, 18 exposed")
        check_picture(page, "page-phone")
