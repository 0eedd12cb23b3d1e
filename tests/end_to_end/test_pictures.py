"""The pictures show what is there today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser import Page
from tests.end_to_end.web_pages import PASSWORD, Client, Web, open_flow, running_demo
from tests.pictures import check_picture
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
