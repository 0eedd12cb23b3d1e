"""The variables with which a client sends its traffic through us."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.run.environment import (
    TRUSTED,
    command_for,
    environment_for,
    is_mcp_remote,
)

BEFORE = {"PATH": "/bin", "NO_PROXY": "*", "https_proxy": "http://other"}


def test_the_environment_names_our_proxy_without_exceptions() -> None:
    found = environment_for(BEFORE, "http://127.0.0.1:1", Path("ca.pem"))
    for name in ("HTTP_PROXY", "https_proxy", "all_proxy", "WSS_PROXY"):
        assert found[name] == "http://127.0.0.1:1"
    assert found["NO_PROXY"] == found["no_proxy"] == ""
    assert {found[name] for name in TRUSTED} == {"ca.pem"}
    assert found["PATH"] == "/bin"


@pytest.mark.parametrize(
    ("command", "is_it"),
    [
        (["npx", "mcp-remote", "u"], True),
        (["C:\\tools\\mcp-remote", "u"], True),
        (["npx", "mcp-remote@1.2", "u"], True),
        (["npx", "my-mcp-remote", "u"], False),
    ],
)
def test_mcp_remote_is_recognised_and_told_to_use_a_proxy(command: list[str], is_it: bool) -> None:
    assert is_mcp_remote(command) is is_it
    told = command_for(command)
    assert told == ([*command, "--enable-proxy"] if is_it else command)
    assert command_for(told) == told
