"""What each client needs to connect to our URL, or to start the filter itself."""

from __future__ import annotations

import json
import shlex

import pytest

from mcp_tool_filter.cli.commands.client_snippets import ServerCommand, ServerUrl, snippet_for
from mcp_tool_filter.cli.table import CLIENTS

URL = "http://127.0.0.1:6273/mcp"
SSE = ServerUrl("http://127.0.0.1:6273/sse", is_sse=True, name="files")
PROGRAM = ServerCommand("files", ["mcp-tool-filter", "--", "npx", "server"], {"KEY": "a b"})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("server", [ServerUrl(URL, is_sse=False, name="files"), SSE, PROGRAM])
def test_each_clients_snippet_names_the_server(
    client: str, server: ServerUrl | ServerCommand
) -> None:
    snippet = snippet_for(client, server)
    assert "files" in snippet.text
    assert snippet.where.endswith(":")
    for word in [server.url] if isinstance(server, ServerUrl) else [*server.words, "a b"]:
        assert word in snippet.text


@pytest.mark.parametrize("client", ["claude-code", "gemini"])
def test_clients_that_support_http_sse_get_its_type(client: str) -> None:
    words = shlex.split(snippet_for(client, SSE).text)
    assert words[words.index("--transport") + 1] == "sse"


@pytest.mark.parametrize("client", ["claude-desktop", "codex", "zed"])
def test_other_clients_reach_http_sse_through_mcp_remote(client: str) -> None:
    snippet = snippet_for(client, SSE)
    assert "mcp-remote" in snippet.text
    assert "eeds Node.js" in snippet.where


@pytest.mark.parametrize(
    ("url", "allows"), [("http://127.0.0.1:1/mcp", False), ("http://10.0.0.1:1/mcp", True)]
)
def test_mcp_remote_gets_allow_http_for_other_machines(url: str, allows: bool) -> None:
    text = snippet_for("claude-desktop", ServerUrl(url, is_sse=False, name="files")).text
    [entry] = json.loads(text)["mcpServers"].values()
    assert ("--allow-http" in entry["args"]) is allows


def test_variables_are_kept_apart_from_the_command() -> None:
    assert json.loads(snippet_for("cursor", PROGRAM).text)["mcpServers"]["files"] == {
        "command": "mcp-tool-filter",
        "args": ["--", "npx", "server"],
        "env": {"KEY": "a b"},
    }
    assert "a b" not in repr(PROGRAM)
