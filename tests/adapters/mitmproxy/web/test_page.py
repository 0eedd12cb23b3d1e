"""The page in a real mitmweb, over its HTTP API; ``end_to_end/test_mitmweb.py`` has the browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.web_pages import DENY, Web, mitmweb, running_demo


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


def test_the_state_contains_all_that_the_page_shows(web: Web) -> None:
    web.client.tools()
    web.client.call("file_read")
    web.client.call("file_delete")
    [state] = web.state()["listeners"]
    tools = {tool["name"]: tool for tool in state["tools"]}
    assert tools["file_read"]["calls"] == 1
    assert tools["file_delete"]["why"] == "denied by ^(file|email)_(delete|send)$"
    assert tools["file_delete"]["refused"] == 1
    assert (state["lists"], state["calls"], state["refused"]) == (1, 1, 1)
    assert state["saved_bytes"] > 1000


def test_details_of_a_call_are_shown_on_request(web: Web) -> None:
    web.client.call("file_read")
    [called] = [one for one in web.state()["recent"] if one.get("tool") == "file_read"]
    status, text = web.api("POST", "/mcp/details", {"number": called["number"]})
    assert status == 200
    assert json.loads(json.loads(text)["arguments"])["name"] == "file_read"
    assert "content" in json.loads(json.loads(text)["result"])


def test_a_bad_pattern_is_refused_and_the_old_filter_stays(web: Web) -> None:
    before = web.client.tools()
    status, text = web.api("PUT", "/options", {"deny": ["^[a-z"]})
    assert status == 400
    assert 'Invalid regex pattern in deny list: "^[a-z"' in text
    assert web.option("deny") == [DENY]
    assert web.client.tools() == before
    assert web.client.call("file_delete")["error"]["code"] == -32601


def test_a_good_pattern_is_adopted_at_once(web: Web) -> None:
    assert web.api("PUT", "/options", {"deny": ["^file_"]})[0] == 200
    assert "table_list" in web.client.tools()
    assert "file_read" not in web.client.tools()
    assert "error" not in web.client.call("table_list")


def test_the_commands_have_names_that_mitmweb_takes(web: Web) -> None:
    web.client.call("file_delete")
    assert any("file_delete: hidden" in line for line in web.command("mcp.tools"))
    assert any("refused: 1" in line for line in web.command("mcp.stats"))
    assert web.command("mcp.sessions")[0].endswith("0 sessions")
