"""The page in a real mitmweb, over its HTTP API; ``end_to_end/test_mitmweb.py`` has the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mitmproxy import contentviews
from mitmproxy.test import taddons

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
from tests.end_to_end.web_pages import Web, mitmweb, running_demo
from tests.proxy import REPOSITORY


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with running_demo() as port, mitmweb(tmp_path, port) as running:
        running.client.begin()
        yield running


def test_the_page_needs_the_password(web: Web) -> None:
    for path in ("/mcp", "/mcp/state", "/mcp/page.js"):
        assert web.api("GET", path, password="wrong")[0] == 403
        assert web.api("GET", path)[0] == 200


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"[1", b'{"deny":[1]}', b"[" * 200_000])
def test_requests_that_the_page_never_sends_are_refused(body: bytes, web: Web) -> None:
    assert web.api("POST", "/mcp/apply", body)[0] == 400


def test_the_commands_have_names_that_mitmweb_takes(web: Web) -> None:
    web.client.call("file_delete")
    assert any("file_delete: hidden" in line for line in web.command("mcp.tools"))
    assert any("refused: 1" in line for line in web.command("mcp.stats"))
    assert web.command("mcp.sessions")[0].endswith("0 sessions")


# The content view MCP


@pytest.fixture(autouse=True)
def views() -> Iterator[None]:
    """Load the addon, which adds our views to mitmproxy."""
    with taddons.context(ToolFilter()):
        yield


class TestContentView:
    def shown(self, recording: str, number: int, part: str = "response") -> str:
        flows = read_flows(REPOSITORY / "recordings" / f"{recording}.flow")
        flow = sorted(flows, key=lambda one: one.request.timestamp_start)[number]
        result = contentviews.prettify_message(getattr(flow, part), flow)
        assert result.view_name == "MCP"
        assert result.syntax_highlight == "yaml"
        return result.text

    def test_a_call_is_readable(self) -> None:
        assert (
            "request tools/call\n  id: 2\n  tool: read_file\n  arguments:\n    path: /ä/b.txt"
            in (self.shown("mcp1-streamable-json", 4, "request"))
        )

    def test_a_list_shows_what_was_removed_and_why(self) -> None:
        text = self.shown("ts1-batch", 2)
        assert text.startswith(
            "# hidden 2 tools\n#   ^(delete|drop)_: delete_file, drop_database\n"
            "# removed: delete_file, drop_database\n# before: "
        )
        assert "- read_file(path, lines?) [read-only]: Reads a text file." in text
        assert "- delete_file" not in text

    def test_the_events_of_a_stream_are_messages(self) -> None:
        text = self.shown("mcp1-sse", 0)
        assert "event 1: endpoint\n  /messages/?session_id=" in text
        assert "notification notifications/progress" in text
        assert "request sampling/createMessage" in text
        assert 'message: "Tool not found: delete_file"' in text

    def test_the_message_before_filtering_can_be_shown(self) -> None:
        flows = read_flows(REPOSITORY / "recordings" / "ts1-batch.flow")
        [flow] = [one for one in flows if "hidden" in one.comment]
        assert flow.response
        result = contentviews.prettify_message(flow.response, flow, "mcp-before")
        assert "- delete_file(path)" in result.text

    def test_other_content_is_left_to_other_views(self) -> None:
        view = contentviews.registry["mcp"]
        for content_type, data in [
            ("text/html", b"<p>"),
            ("application/json", b'{"a":1}'),
            ("application/json", b""),
        ]:
            assert view.render_priority(data, contentviews.Metadata(content_type=content_type)) < 0
