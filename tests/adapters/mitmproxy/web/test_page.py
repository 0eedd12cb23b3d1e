"""The page in a real mitmweb, over its HTTP API; ``end_to_end/test_mitmweb.py`` has the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.web_pages import Web, mitmweb, running_demo


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
