"""Did the traffic of each server of a client come through us, now and the last time?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.client_files.entries import wrap
from mcp_tool_filter.adapters.client_files.files import Surroundings
from mcp_tool_filter.adapters.run import (
    SeenTraffic,
    Server,
    Way,
    client_of,
    is_seen,
    keep_last,
    last_of,
    named_server,
    not_seen,
    servers_of,
    state_file,
    why_not_seen,
)

URL = "https://mcp.example/mcp"
MCP_REMOTE = ["npx", "-y", "mcp-remote", f"{URL}?key=secret"]


def seen(
    *endpoints: str, origins: tuple[str, ...] = (), refused: tuple[str, ...] = ()
) -> SeenTraffic:
    return SeenTraffic(frozenset(endpoints), frozenset(origins), frozenset(refused))


def listed_in(
    folder: Path, servers: dict[str, object], *words: str, **environment: str
) -> tuple[list[Server], list[str]]:
    file = folder / ".cursor" / "mcp.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"mcpServers": servers}))
    here = Surroundings(folder, folder / "project", environment, "linux")
    return servers_of("cursor", ["cursor", *words], here)


@pytest.mark.parametrize(
    ("word", "client"),
    [
        ("/usr/bin/claude", "claude-code"),
        ("Code.exe", "vscode"),
        ("codex.cmd", "codex"),
        ("vi", None),
    ],
)
def test_a_client_is_recognised_by_its_program(word: str, client: str | None) -> None:
    assert client_of([word]) == client


def test_servers_are_told_apart_by_how_the_client_reaches_them(tmp_path: Path) -> None:
    servers = {
        "url": {"url": f"{URL}?key=secret"},
        "remote": {"command": MCP_REMOTE[0], "args": MCP_REMOTE[1:]},
        "command": {"command": "npx", "args": ["server"]},
        "off": {"url": URL, "disabled": True},
        "wrapped": wrap({"url": URL}, ["--deny", "^a"], ["mcp-tool-filter"]),
    }
    found, problems = listed_in(tmp_path, servers)
    assert problems == []
    ways = {one.name: (one.way, one.url, one.has_flag) for one in found}
    assert ways["url"] == (Way.URL, URL, True)
    assert ways["remote"] == (Way.MCP_REMOTE, URL, False)
    assert ways["command"][0] is Way.COMMAND
    assert ways.keys() == {"url", "remote", "command"}
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("written", "expanded"),
    [
        ("https://${HOST}/mcp", "https://a.example/mcp"),
        ("https://${env:HOST}/mcp", "https://a.example/mcp"),
        ("https://${NONE:-b.example}/mcp", "https://b.example/mcp"),
        ("https://${NONE}/mcp", "https://${NONE}/mcp"),
    ],
)
def test_variables_in_urls_are_expanded(written: str, expanded: str, tmp_path: Path) -> None:
    [server], _ = listed_in(tmp_path, {"a": {"url": written}}, HOST="a.example")
    assert server.url == expanded


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text("{")
    here = Surroundings(tmp_path, tmp_path / "project", {}, "linux")
    found, [problem] = servers_of("cursor", ["cursor"], here)
    assert found == []
    assert "mcp.json cannot be read" in problem


def test_a_file_or_json_on_the_command_line_counts_too(tmp_path: Path) -> None:
    here = Surroundings(tmp_path, tmp_path, {}, "linux")
    (tmp_path / "own.json").write_text(json.dumps({"mcpServers": {"a": {"url": URL}}}))
    for words in (
        ["--mcp-config", "own.json"],
        [f'--mcp-config={{"mcpServers":{{"a":{{"url":"{URL}"}}}}}}'],
    ):
        [server], _ = servers_of("claude-code", ["claude", *words], here)
        assert (server.name, server.where) == ("a", "--mcp-config")
    _, [problem] = servers_of("claude-code", ["claude", "--mcp-config", "missing.json"], here)
    assert problem.startswith("Cannot read --mcp-config missing.json")


@pytest.mark.parametrize(
    ("endpoint", "is_it"),
    [
        (URL, True),
        ("https://MCP.example:443/mcp/", True),
        ("https://mcp.example/other", False),
        ("http://mcp.example/mcp", False),
    ],
)
def test_two_spellings_of_a_url_are_equal(endpoint: str, is_it: bool) -> None:
    assert is_seen(named_server(f"{URL}?key=1"), seen(endpoint)) is is_it


@pytest.mark.parametrize(
    ("server", "known", "why"),
    [
        (named_server("https://${HOST}/mcp"), seen(), "its URL has a variable that is not set"),
        (named_server(URL), seen(refused=("mcp.example",)), "does not trust our certificate"),
        (named_server(URL), seen(origins=("https://mcp.example",)), "sent no MCP there"),
        (Server("a", "f", Way.MCP_REMOTE, URL, False), seen(), "only with --enable-proxy"),
        (named_server(URL), seen(), "went around the filter"),
    ],
)
def test_an_unseen_server_has_a_reason(server: Server, known: SeenTraffic, why: str) -> None:
    assert why in why_not_seen(server, known)


def test_servers_that_are_commands_are_not_expected() -> None:
    servers = [Server("c", "f", Way.COMMAND), named_server(URL)]
    assert not_seen(servers, seen()) == servers[1:]
    assert not_seen(servers, seen(URL)) == []


SEEN = SeenTraffic(frozenset(), frozenset(), frozenset())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def servers(*names: str, way: Way = Way.URL) -> list[Server]:
    return [Server(name, "a file", way, f"https://{name}.example/mcp") for name in names]


def test_seen_and_unseen_servers_are_kept_for_each_client() -> None:
    both = servers("a", "b")
    keep_last("codex", [*both, *servers("c", way=Way.COMMAND)], both[1:], SEEN)
    keep_last("cursor", [], [], SEEN)
    found = last_of("codex")
    assert found
    assert found.seen == ("a",)
    assert [name for name, _, _ in found.missing] == ["b"]
    assert found.missing[0][1] == "https://b.example/mcp"


def test_only_the_user_can_read_it(home: Path) -> None:
    keep_last("codex", [], [], SEEN)
    assert state_file({"XDG_STATE_HOME": str(home)}).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{", '{"codex": 5}', '{"codex": {"ended": "x"}}'])
def test_an_unusable_file_is_ignored(content: str, home: Path) -> None:
    assert last_of("codex") is None
    file = state_file({"XDG_STATE_HOME": str(home)})
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert last_of("codex") is None
    keep_last("codex", [], [], SEEN)
    assert last_of("codex")


def test_a_file_that_cannot_be_written_does_no_harm(home: Path) -> None:
    (home / "mcp-tool-filter").write_text("a file where the folder should be")
    keep_last("codex", [], [], SEEN)
    assert last_of("codex") is None
