"""What the clients' own programs and files want to be told, to use the filter."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from mcp_tool_filter.cli.commands.config import ServerCommand, ServerUrl, snippet_for
from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.cli.table import CLIENTS

URL = "http://localhost:3000/mcp"
MINE = "http://127.0.0.1:6273/mcp"
NAME = "localhost-3000-filtered"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCP_TOOL_FILTER_UPSTREAM", raising=False)


def snippet(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["config", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("client", "command"),
    [
        ("claude-code", f"claude mcp add --transport http {NAME} {MINE}"),
        ("codex", f"codex mcp add {NAME} --url {MINE}"),
        ("gemini", f"gemini mcp add --transport http {NAME} {MINE}"),
    ],
)
def test_clients_with_a_command_get_a_command(
    client: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert snippet(capsys, client, "-u", URL) == command + "\n"


@pytest.mark.parametrize(
    ("client", "document"),
    [
        ("cursor", {"mcpServers": {NAME: {"url": MINE}}}),
        ("vscode", {"servers": {NAME: {"type": "http", "url": MINE}}}),
        ("windsurf", {"mcpServers": {NAME: {"serverUrl": MINE}}}),
        ("zed", {"context_servers": {NAME: {"url": MINE}}}),
        ("opencode", {"mcp": {NAME: {"type": "remote", "url": MINE}}}),
        ("copilot", {"mcpServers": {NAME: {"type": "http", "url": MINE}}}),
        ("cline", {"mcpServers": {NAME: {"type": "streamableHttp", "url": MINE}}}),
        ("kiro", {"mcpServers": {NAME: {"url": MINE}}}),
        (
            "claude-desktop",
            {"mcpServers": {NAME: {"command": "npx", "args": ["-y", "mcp-remote", MINE]}}},
        ),
    ],
)
def test_clients_with_a_file_get_its_content(
    client: str, document: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(snippet(capsys, client, "-u", URL)) == document


@pytest.mark.parametrize(
    ("client", "part"),
    [
        ("claude-code", "--transport sse"),
        ("gemini", "--transport sse"),
        ("codex", "-- npx -y mcp-remote http://127.0.0.1:6273/sse"),
        ("vscode", '"type": "sse"'),
        ("windsurf", '"serverUrl": "http://127.0.0.1:6273/sse"'),
        ("zed", '"mcp-remote"'),
    ],
)
def test_the_older_transport_is_used_by_the_client_too(
    client: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in snippet(capsys, client, "-u", "http://localhost:3000/sse")


def test_the_filters_own_command_is_printed_to_stderr_without_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter1")
    words = ["-d", "^a b", "-H", "X-Key: hunter2", "-H", "Authorization: Bearer ${TOKEN}"]
    assert main(["config", "cursor", "-u", f"{URL}?key=hunter3", *words, "--port", "9"]) == 0
    said = capsys.readouterr().err
    assert "--deny '^a b'" in said
    assert "--header 'Authorization: Bearer ${TOKEN}'" in said
    assert "--header 'X-Key: …'" in said
    assert "--port 9" in said
    assert "hunter" not in said
    assert f'--upstream "{URL}?key=$KEY"' in said
    assert "(set KEY to the values from your URL)" in said


def test_the_command_works_in_a_shell_that_has_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{URL}?api-key=a$b&q='x\"`"
    assert main(["config", "cursor", "-u", url, "-d", "^a$"]) == 0
    line = capsys.readouterr().err.splitlines()[-1].replace("mcp-tool-filter", "printf '%s\\n'", 1)
    variables = {"API_KEY": "a$b", "Q": "'x\"`"}
    ended = subprocess.run(
        ["sh", "-c", line], env=variables, capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == ["--upstream", url, "--deny", "^a$"]


def test_a_wildcard_address_becomes_the_loopback_for_clients(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert MINE in snippet(capsys, "cursor", "-u", URL, "--host", "0.0.0.0")


def test_the_path_is_guessed_without_an_upstream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "cursor", "-u", "http://127.0.0.1:1"]) == 0
    said = capsys.readouterr()
    assert MINE in said.out
    assert "the path /mcp is assumed" in said.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "Which client? It comes after config"),
        (["cusor"], "There is no client cusor: did you mean cursor?"),
        (["cursor", "-u", URL, "--port", "0"], "--port 0 picks another port each time"),
        (["cursor"], "Missing --upstream URL"),
    ],
)
def test_missing_arguments_are_named(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", *words]) == 2
    assert part in capsys.readouterr().err


def test_a_client_that_is_installed_is_not_taken_for_a_servers_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "codex"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert snippet(capsys, "codex", "-u", URL).startswith("codex mcp add")
    assert main(["config", "cursor", "codex", "-u", URL]) == 2
    assert "A server's command comes after --" in capsys.readouterr().err


def test_help_names_the_clients(capsys: pytest.CaptureFixture[str]) -> None:
    assert "claude-desktop" in snippet(capsys, "--help")


def test_codex_could_keep_its_name_in_toml(capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes [mcp_servers.NAME]: a name with a dot would be two keys."""
    name = snippet(capsys, "codex", "-u", "http://mcp.a.example.com:1/mcp").split()[3]
    assert tomllib.loads(f"[mcp_servers.{name}]\nurl = '{MINE}'")["mcp_servers"][name]


WRAPPED = ["mcp-tool-filter", "--deny", "^delete_", "--", "npx", "-y", "@x/server-files", "/home"]
WORDS = ("--deny", "^delete_", "--env", "KEY=s3cret", "--", *WRAPPED[4:])


@pytest.mark.parametrize(
    ("client", "before"),
    [
        ("claude-code", ["claude", "mcp", "add", "files-filtered", "--env", "KEY=s3cret", "--"]),
        ("codex", ["codex", "mcp", "add", "files-filtered", "--env", "KEY=s3cret", "--"]),
    ],
)
def test_a_command_is_wrapped_for_clients_with_a_command(
    client: str, before: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shlex.split(snippet(capsys, client, *WORDS)) == [*before, *WRAPPED]


@pytest.mark.parametrize(
    ("client", "servers", "more"),
    [
        ("cursor", "mcpServers", {}),
        ("claude-desktop", "mcpServers", {}),
        ("vscode", "servers", {"type": "stdio"}),
        ("windsurf", "mcpServers", {}),
        ("zed", "context_servers", {}),
    ],
)
def test_a_command_is_wrapped_for_clients_with_a_file(
    client: str, servers: str, more: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A secret stands where the client keeps variables, and in no argument."""
    entry = {**more, "command": WRAPPED[0], "args": WRAPPED[1:], "env": {"KEY": "s3cret"}}
    assert json.loads(snippet(capsys, client, *WORDS)) == {servers: {"files-filtered": entry}}


def test_opencode_has_a_command_in_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"type": "local", "command": WRAPPED, "environment": {"KEY": "s3cret"}}
    document = json.loads(snippet(capsys, "opencode", *WORDS))
    assert document == {"mcp": {"files-filtered": entry}}


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("-u", URL), {"type": "streamable_http", "uri": MINE}),
        (
            WORDS,
            {"type": "stdio", "cmd": WRAPPED[0], "args": WRAPPED[1:], "envs": {"KEY": "s3cret"}},
        ),
    ],
)
def test_goose_gets_yaml(
    words: Sequence[str], more: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    [(name, entry)] = YAML(typ="safe").load(snippet(capsys, "goose", *words))["extensions"].items()
    assert entry == {"enabled": True, "name": name, **more}


def test_gemini_starts_the_filter_with_arguments_after_dashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = shlex.split(snippet(capsys, "gemini", *WORDS))
    assert words[-len(WRAPPED) - 1 :] == [WRAPPED[0], "--", *WRAPPED[1:]]


def test_a_url_can_be_reached_over_stdio(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(snippet(capsys, "cursor", "--stdio", "-u", URL, "--deny", "^a"))
    args = ["--stdio", "--upstream", URL, "--deny", "^a"]
    entry = document["mcpServers"][NAME]
    assert (entry["command"], sorted(entry["args"])) == ("mcp-tool-filter", sorted(args))


def test_a_command_that_is_served_over_http_has_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(snippet(capsys, "cursor", "--port", "8080", *WORDS))
    assert document == {"mcpServers": {"files-filtered": {"url": "http://127.0.0.1:8080/mcp"}}}


OURS = "http://127.0.0.1:6273/mcp"
SSE = ServerUrl("http://127.0.0.1:6273/sse", is_sse=True, name="files")
PROGRAM = ServerCommand("files", ["mcp-tool-filter", "--", "npx", "server"], {"KEY": "a b"})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("server", [ServerUrl(OURS, is_sse=False, name="files"), SSE, PROGRAM])
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
