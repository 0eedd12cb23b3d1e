"""Commands and URLs as people see them: no secret is left, and the rest stays readable."""

from __future__ import annotations

import shlex

import pytest

from mcp_tool_filter.observers.redaction.shown import (
    may_hold_a_secret,
    secrets_in_words,
    shown_command,
    shown_url,
)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("npx -y @scope/server-filesystem /home/bob/project", None),
        ("uvx mcp-server-fetch@2025.4.7 --port 3000", None),
        ("python3 /tmp/pytest-of-root/pytest-1/test_x0/server.py", None),
        ("node --token-file /run/token --verbose", None),
        ("npx mcp-remote https://mcp.example/sse", None),
        ("x --access-token X -y", "x --access-token *** -y"),
        ("x --password=X", "x --password=***"),
        ("x --secret --verbose", None),
        ("x --api-keys a,b", "x --api-keys ***"),
        ("mysql -u bob:pw", "mysql -u bob:***"),
        ("docker run -e API_KEY=k -e DEBUG=1 image", "docker run -e API_KEY=*** -e DEBUG=1 image"),
        ("curl -H 'Authorization: Bearer b'", "curl -H 'Authorization: ***'"),
        ("curl --header=X-Api-Key:k", "curl --header=X-Api-Key:***"),
        ("redis://:pw@h:6379/0", "redis://***@h:6379/0"),
        ("x postgresql://h/db?password=b", "x 'postgresql://h/db?password=***'"),
        ("sh -c 'run --token abc; open https://a:b@c/d'", "sh -c 'run --token *** open https://***@c/d'"),
        ("x ghp_0123456789abcdefABCD", "x ***"),
        ("x Zk3v9QpX7dRt5WmN2bLc", "x ***"),
        ("x '{\"apiKey\":\"k\"}'", "x '{\"apiKey\":\"***\"}'"),
    ],
)  # fmt: skip
def test_a_command(command: str, shown: str | None) -> None:
    words = shlex.split(command)
    assert shown_command(words) == (shown or shlex.join(words))
    assert shown_command(words).count("***") >= len(list(secrets_in_words(words)))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://[::1]:3000/mcp/2024-11-05", None),
        ("https://mcp.example/modelcontextprotocol/sse", None),
        ("https://mcp.example/s/Zk3v9QpX7d/mcp", "https://mcp.example/s/…/mcp"),
        ("https://bob:pw@mcp.example?a=b&c", "https://…@mcp.example?a=…&…"),
        ("/mcp?s3cret", "/mcp?…"),
        ("/mcp#s3cret", "/mcp#…"),
    ],
)
def test_a_url(url: str, shown: str | None) -> None:
    assert shown_url(url) == (shown or url)
    assert may_hold_a_secret(url) == (shown is not None)
