"""The page ``/mcp`` in mitmweb: the tool filter at a glance, behind mitmweb's token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.watch.dashboard import CHANGES, FILES, TYPES, Dashboard, not_let_in

if TYPE_CHECKING:
    from mitmproxy.master import Master

_NO_TOKEN = not_let_in(
    "This page needs mitmweb's token",
    "mitmweb printed an address with <code>?token=…</code> when it started. Open that address once"
    " in this browser, then return to this page.",
    style="/mcp/page.css",
)
_OUR_STYLE = b'<link rel="stylesheet" href="/mcp/mitmweb.css"></head>'
_OUR_LINK = b'<body><a id="mcp-tool-filter" href="/mcp">MCP tool filter</a>'


def add_page(master: Master, dashboard: Dashboard) -> None:
    """Add the page to mitmweb; other masters have no ``app``."""
    app = getattr(master, "app", None)
    if app is None:
        return
    # Imported late: only mitmweb has tornado loaded anyway.
    import tornado.web
    from mitmproxy.tools.web.app import IndexHandler, RequestHandler

    class Index(IndexHandler):
        """mitmweb's own page with a link to ours, which nobody would find otherwise."""

        def render_string(self, template_name: str, **values: object) -> bytes:
            text: bytes = super().render_string(template_name, **values)
            if not template_name.endswith("index.html"):
                return text
            return text.replace(b"</head>", _OUR_STYLE, 1).replace(b"<body>", _OUR_LINK, 1)

    class PageHandler(RequestHandler):
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

    class Style(tornado.web.RequestHandler):
        """Needs no token, because the page about the missing token has the same style."""

        def get(self) -> None:
            self.set_header("Content-Type", TYPES["page.css"])
            self.write((FILES / "page.css").read_bytes())

    class StateHandler(RequestHandler):
        def get(self) -> None:
            self.set_header("Cache-Control", "no-store")
            self.write(dashboard.state())

    class Change(RequestHandler):
        def post(self, name: str) -> None:
            try:
                answer = CHANGES[name](dashboard, json.loads(self.request.body or b"{}"))
            except (ValueError, KeyError, TypeError, RecursionError):
                self.set_status(400)
                return
            self.write(answer)

    app.add_handlers(
        r".*",
        [
            (r"/", Index),
            (r"/mcp/?", PageHandler),
            (r"/mcp/page\.css", Style),
            (r"/mcp/(page\.js|mitmweb\.css)", File),
            (r"/mcp/state", StateHandler),
            (r"/mcp/(preview|apply|undo)", Change),
        ],
    )
