"""The page ``/mcp`` in mitmweb: the tool filter at a glance, behind mitmweb's token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.watch.dashboard import Dashboard, answer_page, not_let_in

if TYPE_CHECKING:
    from mitmproxy.master import Master

_NO_TOKEN = not_let_in(
    "This page needs mitmweb's token",
    "mitmweb printed an address with <code>?token=…</code> when it started. Open that address once"
    " in this browser, then return to this page.",
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

    class Page(RequestHandler):
        def auth_fail(self, invalid_password: bool) -> None:
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            self.write(_NO_TOKEN)

        def get(self) -> None:
            # The page's requests carry the token that this sets as a cookie.
            _ = self.xsrf_token
            self._give()

        def post(self) -> None:
            self._give()

        def _give(self) -> None:
            request = self.request
            answer = answer_page(dashboard, request.method or "", request.path, request.body)
            self.set_status(answer.status)
            self.set_header("Content-Type", answer.content_type)
            self.set_header("Cache-Control", "no-store")
            self.write(answer.body)

    class Style(tornado.web.RequestHandler):
        """Needs no token, because the page about the missing token has the same style."""

        def get(self) -> None:
            answer = answer_page(dashboard, "GET", self.request.path, b"")
            self.set_header("Content-Type", answer.content_type)
            self.write(answer.body)

    pages = [(r"/", Index), (r"/mcp/page\.css", Style), (r"/mcp(?:/[^/]*)?", Page)]
    app.add_handlers(r".*", pages)
