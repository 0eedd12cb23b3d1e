"""The pictures show what is there today."""

from __future__ import annotations

import json

from tests.browser import Page
from tests.end_to_end.web_pages import PASSWORD, Web, open_flow
from tests.pictures import check_picture


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
