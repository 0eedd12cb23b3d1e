"""The page ``/mcp`` in mitmweb: the tool filter at a glance, behind mitmweb's token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.dashboard import CHANGES, FILES, TYPES, Dashboard

if TYPE_CHECKING:
    from mitmproxy.master import Master

_NO_TOKEN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>MCP tool filter</title>
<h1>This page needs mitmweb's token</h1>
<p>mitmweb printed an address with <code>?token=…</code> when it started. Open that address once in
this browser, then come back to this page.</p></html>"""


def add_page(master: Master, dashboard: Dashboard) -> None:
    """Let mitmweb serve the page; other masters have no ``app``."""
    app = getattr(master, "app", None)
    if app is None:
        return
    # Only mitmweb has tornado loaded anyway.
    from mitmproxy.tools.web.app import RequestHandler

    class Page(RequestHandler):
        def auth_fail(self, invalid_password: bool) -> None:
            self.set_header("Content-Type", TYPES["page.html"])
            self.write(_NO_TOKEN)

        def get(self) -> None:
            # The page's requests carry the token that this sets as a cookie.
            _ = self.xsrf_token
            self.set_header("Content-Type", TYPES["page.html"])
            self.write((FILES / "page.html").read_bytes())

    class File(RequestHandler):
        def get(self, name: str) -> None:
            self.set_header("Content-Type", TYPES[name])
            self.write((FILES / name).read_bytes())

    class State(RequestHandler):
        def get(self) -> None:
            self.set_header("Cache-Control", "no-store")
            self.write(dashboard.state())

    class Change(RequestHandler):
        def post(self, name: str) -> None:
            try:
                answer = CHANGES[name](dashboard, json.loads(self.request.body or b"{}"))
            except (ValueError, KeyError, TypeError):
                self.set_status(400)
                return
            self.write(answer)

    app.add_handlers(
        r".*",
        [
            (r"/mcp/?", Page),
            (r"/mcp/(page\.js|page\.css)", File),
            (r"/mcp/state", State),
            (r"/mcp/(preview|apply|undo)", Change),
        ],
    )
