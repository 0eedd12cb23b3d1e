"""What to fetch from follows from the settings; the user's own credentials come first."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.upstream.target import has_authorization, login_to, target_for
from mcp_tool_filter.policy.config import parse_config

URL = "http://127.0.0.1:3000"


def test_a_target_holds_the_settings() -> None:
    config = parse_config(
        endpoint="/mcp",
        upstream_headers=["X-Key: 1"],
        connection_timeout="1500",
        tool_list_timeout="2500",
        message_limit="1KB",
    )
    target = target_for(config, URL, None)
    assert (target.url, target.endpoint, target.headers) == (URL, "/mcp", (("X-Key", "1"),))
    assert (target.connect_timeout, target.list_timeout, target.limit) == (1.5, 2.5, 1024)


@pytest.mark.parametrize(
    ("header", "has"), [("authorization: Bearer x", True), ("X-Authorization: Bearer x", False)]
)
def test_credentials_are_recognised_by_their_header(header: str, has: bool) -> None:
    config = parse_config(upstream_headers=[header])
    assert has_authorization(target_for(config, URL, None)) is has


def test_a_stored_login_is_used_only_where_the_user_gives_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mcp-tool-filter" / "logins"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked: list[str] = []

    def note(endpoint: str) -> None:
        asked.append(endpoint)

    monkeypatch.setattr("mcp_tool_filter.adapters.oauth.tokens.credentials_for", note)
    for headers, login in (([], "off"), (["Authorization: Bearer x"], "auto"), ([], "auto")):
        config = parse_config(endpoint="/mcp", upstream_headers=headers, login=login)
        login_to(target_for(config, URL, None))
    assert asked == [f"{URL}/mcp"]
    folder.rmdir()
    login_to(target_for(parse_config(endpoint="/mcp"), URL, None))
    assert asked == [f"{URL}/mcp"]
