"""The page ``/mcp`` in mitmweb: the tool filter at a glance.

It is one of mitmweb's own pages, behind its token. Its files stand in ``files/``; what it shows
it asks for every second at ``/mcp/state``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.mitmproxy.web.overview import Overview

if TYPE_CHECKING:
    from mitmproxy.master import Master

_FILES = Path(__file__).parent / "files"
_TYPES = {"page.js": "text/javascript", "page.css": "text/css"}


def add_page(master: Master, overview: Overview) -> None:
    """Let mitmweb serve the page; other masters have no ``app``."""
    app = getattr(master, "app", None)
    if app is None:
        return
    # Only mitmweb has tornado loaded anyway.
    from mitmproxy.tools.web.app import RequestHandler

    class Page(RequestHandler):
        def get(self) -> None:
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            self.write((_FILES / "page.html").read_bytes())

    class File(RequestHandler):
        def get(self, name: str) -> None:
            self.set_header("Content-Type", f"{_TYPES[name]}; charset=UTF-8")
            self.write((_FILES / name).read_bytes())

    class State(RequestHandler):
        def get(self) -> None:
            self.set_header("Cache-Control", "no-store")
            self.write({"listeners": overview.render(), "refused_edit": overview.refused_edit})

    app.add_handlers(
        r".*", [(r"/mcp/?", Page), (r"/mcp/(page\.js|page\.css)", File), (r"/mcp/state", State)]
    )
