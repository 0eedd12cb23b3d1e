"""What the clients' own programs and files want to be told, to use the filter."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from base64 import b64decode
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, unquote

import pytest
from ruamel.yaml import YAML

from mcp_tool_filter.cli.table import CLIENTS
from mcp_tool_filter.rooms.clients.config_command import ServerCommand, ServerUrl, snippet_for
from tests.cli.launched import Typed

URL = "http://localhost:3000/mcp"
MINE = "http://127.0.0.1:6273/mcp"
NAME = "localhost-3000-filtered"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("words", [("--upstream", URL), ("--", "npx", "-y", "a&b=c+d é")])
def test_a_link_adds_what_the_snippet_says(
    client: str, words: tuple[str, ...], typed: Typed
) -> None:
    """Cursor and VS Code open such links."""
    said = typed("config", client, *words)
    [*links] = [line for line in said.err.splitlines() if line.startswith("Or open this link: ")]
    assert len(links) == (client in ("cursor", "vscode"))
    for link in links:
        place, _, query = link.removeprefix("Or open this link: ").partition("?")
        if client == "cursor":
            assert place == "cursor://anysphere.cursor-deeplink/mcp/install"
            [name], [config] = parse_qs(query, strict_parsing=True).values()
            entry = json.loads(b64decode(config, validate=True))
        else:
            assert place == "vscode:mcp/install"
            entry = json.loads(unquote(query, errors="strict"))
            name = entry.pop("name")
        [servers] = json.loads(said.out).values()
        assert servers == {name: entry}


@pytest.mark.parametrize(
    "words", [("--env", "A=b", "--", "npx"), ("--header", "A: b", "--stdio", "-u", URL)]
)
def test_no_link_has_a_secret(words: tuple[str, ...], typed: Typed) -> None:
    assert "link" not in typed("config", "cursor", *words).err


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCP_TOOL_FILTER_UPSTREAM", raising=False)


SSE = MINE.replace("/mcp", "/sse")
WRAPPED = ["mcp-tool-filter", "--deny", "^delete_", "--", "npx", "-y", "@x/server-files", "/home"]
WORDS = ("--deny", "^delete_", "--env", "KEY=s3cret", "--", *WRAPPED[4:])
STARTS = {"command": WRAPPED[0], "args": WRAPPED[1:], "env": {"KEY": "s3cret"}}
OF_GOOSE = {"cmd": WRAPPED[0], "args": WRAPPED[1:], "envs": {"KEY": "s3cret"}}


def starts(url: str) -> dict[str, object]:
    """The filter, which the client starts itself."""
    return {"command": "mcp-tool-filter", "args": ["--stdio", "--upstream", url]}


OLD = URL.replace("/mcp", "/sse")


BY_URL = ({"url": MINE}, {"url": SSE}, STARTS)
BY_TYPE = ({"type": "http", "url": MINE}, {"type": "sse", "url": SSE}, {"type": "stdio"} | STARTS)
FILES: dict[str, tuple[object, ...]] = {
    # the list in the file, and its entries for a URL, the older transport, and a command
    "claude-desktop": ("mcpServers", starts(URL), starts(OLD), STARTS),
    "cursor": ("mcpServers", *BY_URL), "vscode": ("servers", *BY_TYPE),
    "windsurf": ("mcpServers", {"serverUrl": MINE}, {"serverUrl": SSE}, STARTS),
    "zed": ("context_servers", {"url": MINE}, starts(OLD), STARTS),
    "opencode": (
        "mcp", {"type": "remote", "url": MINE}, {"type": "remote", "url": SSE},
        {"type": "local", "command": WRAPPED, "environment": {"KEY": "s3cret"}},
    ),
    "copilot": ("mcpServers", *BY_TYPE),
    "cline": ("mcpServers", {"type": "streamableHttp", "url": MINE}, *BY_TYPE[1:]),
    "kiro": ("mcpServers", *BY_URL), "lmstudio": ("mcpServers", *BY_URL),
    "goose": (
        "extensions", {"type": "streamable_http", "uri": MINE},
        {"type": "stdio", "cmd": "mcp-tool-filter", "args": starts(OLD)["args"]},
        {"type": "stdio"} | OF_GOOSE,
    ),
}  # fmt: skip
ENV = ("--env", "KEY=s3cret")
COMMANDS = {
    "claude-code": (
        ["claude", "mcp", "add", "--transport", "http", NAME, MINE],
        ["claude", "mcp", "add", "--transport", "sse", NAME, SSE],
        ["claude", "mcp", "add", "files-filtered", *ENV, "--", *WRAPPED],
    ),
    "codex": (
        ["codex", "mcp", "add", NAME, "--url", MINE],
        ["codex", "mcp", "add", NAME, "--", "mcp-tool-filter", "--stdio", "--upstream", OLD],
        ["codex", "mcp", "add", "files-filtered", *ENV, "--", *WRAPPED],
    ),
    "gemini": (
        ["gemini", "mcp", "add", "--transport", "http", NAME, MINE],
        ["gemini", "mcp", "add", "--transport", "sse", NAME, SSE],
        ["gemini", "mcp", "add", *ENV, "files-filtered", WRAPPED[0], "--", *WRAPPED[1:]],
    ),
}
ASKED = [("-u", URL), ("-u", URL.replace("/mcp", "/sse")), WORDS]


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_is_told_about_a_url_an_older_url_and_a_command(
    client: str, typed: Typed
) -> None:
    """A secret stands where the client keeps variables, and in no argument."""
    for number, (name, words) in enumerate(zip((NAME, NAME, "files-filtered"), ASKED, strict=True)):
        said = typed("config", client, *words)
        if client in COMMANDS:
            assert shlex.split(said.out) == COMMANDS[client][number]
        else:
            key, *entries = FILES[client]
            more = {"enabled": True, "name": name} if client == "goose" else {}
            wanted = {key: {name: {**more, **cast(dict[str, object], entries[number])}}}
            assert YAML(typ="safe").load(said.out) == wanted
        assert "mcp-remote" not in said.out
        assert said.err.splitlines()[0].endswith(":")


def test_a_client_without_urls_reaches_a_port_that_was_asked_for(typed: Typed) -> None:
    said = typed("config", "claude-desktop", "-u", URL, "--port", "6273")
    assert json.loads(said.out)["mcpServers"][NAME]["args"] == ["-y", "mcp-remote", MINE]
    assert "needs Node.js" in said.err


def test_the_filters_own_command_is_printed_to_stderr_without_secrets(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter1")
    words = ["-d", "^a b", "-H", "X-Key: hunter2", "-H", "Authorization: Bearer ${TOKEN}"]
    said = typed("config", "cursor", "-u", f"{URL}?key=hunter3", *words, "--port", "9").err
    assert "--deny '^a b'" in said
    assert "--header 'Authorization: Bearer ${TOKEN}'" in said
    assert "--header 'X-Key: …'" in said
    assert "--port 9" in said
    assert "hunter" not in said
    assert f'--upstream "{URL}?key=$KEY"' in said
    assert "(set KEY to the values from your URL)" in said


def test_the_command_works_in_a_shell_that_has_the_key(typed: Typed) -> None:
    url = f"{URL}?api-key=a$b&q='x\"`"
    line = typed("config", "cursor", "-u", url, "-d", "^a$").err.splitlines()[-1]
    line = line.replace("mcp-tool-filter", "printf '%s\\n'", 1)
    variables = {"API_KEY": "a$b", "Q": "'x\"`"}
    said = subprocess.check_output(["sh", "-c", line], env=variables, text=True)
    assert said.splitlines() == ["--upstream", url, "--deny", "^a$"]


def test_a_wildcard_address_becomes_the_loopback_for_clients(typed: Typed) -> None:
    assert MINE in typed("config", "cursor", "-u", URL, "--host", "0.0.0.0").out


def test_the_path_is_guessed_without_an_upstream(typed: Typed) -> None:
    said = typed("config", "cursor", "-u", "http://127.0.0.1:1")
    assert MINE in said.out
    assert "the path /mcp is assumed" in said.err


def test_a_client_that_is_installed_is_not_taken_for_a_servers_command(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "codex"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed("config", "codex", "-u", URL).out.startswith("codex mcp add")
    refused = typed("config", "cursor", "codex", "-u", URL, status=2).err
    assert "A server's command comes after --" in refused


def test_help_names_the_clients(typed: Typed) -> None:
    assert "claude-desktop" in typed("config", "--help").out


def test_codex_could_keep_its_name_in_toml(typed: Typed) -> None:
    """The command writes [mcp_servers.NAME]: a name with a dot would be two keys."""
    name = typed("config", "codex", "-u", "http://mcp.a.example.com:1/mcp").out.split()[3]
    assert tomllib.loads(f"[mcp_servers.{name}]\nurl = '{MINE}'")["mcp_servers"][name]


def test_a_url_can_be_reached_over_stdio(typed: Typed) -> None:
    document = json.loads(typed("config", "cursor", "--stdio", "-u", URL, "--deny", "^a").out)
    args = ["--stdio", "--upstream", URL, "--deny", "^a"]
    entry = document["mcpServers"][NAME]
    assert (entry["command"], sorted(entry["args"])) == ("mcp-tool-filter", sorted(args))


def test_a_command_that_is_served_over_http_has_a_url(typed: Typed) -> None:
    document = json.loads(typed("config", "cursor", "--port", "8080", *WORDS).out)
    assert document == {"mcpServers": {"files-filtered": {"url": "http://127.0.0.1:8080/mcp"}}}


def test_mcp_remote_gets_allow_http_for_other_machines() -> None:
    server = ServerUrl("http://10.0.0.1:1/mcp", is_sse=False, name="files")
    assert '"--allow-http"' in snippet_for("claude-desktop", server).text


def test_variables_are_not_in_the_representation() -> None:
    assert "a b" not in repr(ServerCommand("files", ["npx"], {"KEY": "a b"}))
