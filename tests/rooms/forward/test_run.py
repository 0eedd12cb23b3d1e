"""The client that we start, what it gets, and whether its traffic came through us."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import certifi
import pytest

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.clients.entries import wrap
from mcp_tool_filter.rooms.clients.files import Whereabouts
from mcp_tool_filter.rooms.forward import run
from mcp_tool_filter.rooms.forward.run import (
    CannotRun,
    SeenTraffic,
    ServerOfClient,
    Way,
    named_server,
)
from tests.rows import each_row


async def ran(code: str, cwd: str | None = None) -> int:
    return await run.run_client([sys.executable, "-c", code], os.environ, cwd)


async def test_the_client_runs_in_the_given_folder(tmp_path: Path) -> None:
    assert await ran("open('here', 'w')", str(tmp_path)) == 0
    assert (tmp_path / "here").exists()
    with pytest.raises(StartError, match="There is no such folder"):
        await ran("", str(tmp_path / "missing"))


def test_a_program_is_looked_up_in_the_clients_path(tmp_path: Path) -> None:
    program = tmp_path / "client"
    program.touch(0o755)
    assert run.find_program(["client"], {"PATH": str(tmp_path)}) == str(program)


@pytest.mark.parametrize(
    ("text", "mode", "status", "why"),
    [
        (None, 0, 127, "Command not found"),
        ("", 0o644, 126, "Permission denied"),
        ("#!/no/such/shell\n", 0o755, 127, "no /no/such/shell, which its first line names"),
        ("echo\n", 0o755, 126, "A script's first line must name what runs it"),
    ],
)
async def test_a_program_that_cannot_run_has_a_reason_and_a_shells_status(
    text: str | None, mode: int, status: int, why: str, tmp_path: Path
) -> None:
    """For scripts the system says no more than for a command that is not there."""
    program = tmp_path / "client"
    if text is not None:
        program.write_text(text)
        program.chmod(mode)
    with pytest.raises(CannotRun) as caught:
        await run.run_client([run.find_program([str(program)], {"PATH": ""})], {}, None)
    assert (caught.value.exit_status, why in caught.value.why) == (status, True)


def test_a_folder_is_not_a_program(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=f"{tmp_path} is a folder, not a program") as caught:
        run.find_program([str(tmp_path)], {})
    assert caught.value.exit_status == 126


@pytest.mark.parametrize(
    ("command", "is_it"),
    [
        (["npx", "mcp-remote", "u"], True), (["C:\\tools\\mcp-remote", "u"], True),
        (["npx", "mcp-remote@1.2", "u"], True), (["npx", "my-mcp-remote", "u"], False),
    ],
)  # fmt: skip
def test_mcp_remote_is_recognised_and_told_to_use_a_proxy(command: list[str], is_it: bool) -> None:
    assert run.is_mcp_remote(command) is is_it
    told = run.command_for(command)
    assert told == ([*command, "--enable-proxy"] if is_it else command)
    assert run.command_for(told) == told


OURS = b"-----BEGIN CERTIFICATE-----\nours\n"
THEIRS = b"-----BEGIN CERTIFICATE-----\ntheirs\n"


def bundles(folder: Path, own: Path | None = None, **environment: Path) -> list[bytes]:
    """Return the certificates that the client trusts, and those that we trust."""
    files = {name: str(file) for name, file in environment.items()}
    named = str(own) if own else None
    made = run.write_bundles(folder, ours=OURS, own=named, environment=files)
    return [one.read_bytes() for one in made]


def test_the_client_trusts_us_and_both_trust_what_it_trusted_before(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.pem"
    theirs.write_bytes(THEIRS)
    client, upstream = bundles(tmp_path, NODE_EXTRA_CA_CERTS=theirs)
    usual = Path(certifi.where()).read_bytes()
    for text in (client, upstream):
        assert usual in text
        assert THEIRS in text
    assert OURS in client
    assert OURS not in upstream


def test_a_file_that_the_user_names_must_have_certificates(tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(b"nothing")
    with pytest.raises(StartError, match="Cannot read --ca"):
        bundles(tmp_path, own)
    own.write_bytes(THEIRS)
    assert THEIRS in bundles(tmp_path, own)[0]


def test_missing_files_are_left_out(tmp_path: Path) -> None:
    assert OURS in bundles(tmp_path, SSL_CERT_FILE=tmp_path / "missing.pem")[0]


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({"HTTPS_PROXY": "http://a:3128", "HTTP_PROXY": "http://b"}, "upstream:http://a:3128"),
        ({"http_proxy": "b.example:8080"}, "upstream:http://b.example:8080"),
        ({"ALL_PROXY": "https://c"}, "upstream:https://c:443"),
        ({"https_proxy": "http://[::1]"}, "upstream:http://[::1]:80"),
    ],
)
def test_the_most_specific_proxy_variable_counts(environment: dict[str, str], mode: str) -> None:
    found = run.find_proxy(environment)
    assert found
    assert (found.mode, found.login) == (mode, None)
    assert run.find_proxy({"HTTPS_PROXY": "", "NO_PROXY": "*"}) is None


def test_a_login_is_unquoted_and_in_no_repr() -> None:
    found = run.find_proxy({"https_proxy": "http://me:p%40ss@proxy:1"})
    assert found
    assert found.login == "me:p@ss"
    assert "p@ss" not in repr(found)


@each_row("url", [
    "socks5://a:1", "http://a:port", "http://", "http://a b:1", "http://a..b", "http://:secret@a:1",
])  # fmt: skip
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(url: str) -> None:
    with pytest.raises(StartError) as caught:
        run.find_proxy({"HTTPS_PROXY": url})
    assert caught.value.what == "The proxy in HTTPS_PROXY cannot be used"
    assert "secret" not in caught.value.one_line


@each_row(
    ("entry", "host", "is_direct"),
    [
        ("*", "a.example", True), ("a.example", "a.example", True),
        ("a.example", "A.EXAMPLE", True), ("a.example", "127.0.0.1", True),
        ("a.example", "b.a.example", True), (".a.example", "b.a.example", True),
        ("*.a.example", "b.a.example", True), ("a.example:443", "a.example", True),
        ("a.example", "xa.example", False),
        ("10.0.0.0/8", "10.1.2.3", True), ("10.0.0.0/8", "11.1.2.3", False),
    ],
)  # fmt: skip
def test_no_proxy_hosts_are_reached_directly(entry: str, host: str, is_direct: bool) -> None:
    assert run.OuterProxy("", None, (entry,)).is_direct(host) is is_direct


URL = "https://mcp.example/mcp"
MCP_REMOTE = ["npx", "-y", "mcp-remote", f"{URL}?key=secret"]


def seen(*urls: str, refused: tuple[str, ...] = ()) -> SeenTraffic:
    return SeenTraffic(frozenset(urls), frozenset(refused))


def listed_in(
    folder: Path, servers: dict[str, object], *words: str, **environment: str
) -> tuple[list[ServerOfClient], list[str]]:
    file = folder / ".cursor" / "mcp.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"mcpServers": servers}))
    here = Whereabouts(folder, folder / "project", environment, "linux")
    return run.servers_of("cursor", ["cursor", *words], here)


@pytest.mark.parametrize(
    ("word", "client"),
    [
        ("/usr/bin/claude", "claude-code"), ("Code.exe", "vscode"), ("codex.cmd", "codex"),
        ("vi", None),
    ],
)  # fmt: skip
def test_a_client_is_recognised_by_its_program(word: str, client: str | None) -> None:
    assert run.client_of([word]) == client


def test_servers_are_told_apart_by_how_the_client_reaches_them(tmp_path: Path) -> None:
    servers = {
        "url": {"url": f"{URL}?key=secret"},
        "remote": {"command": MCP_REMOTE[0], "args": MCP_REMOTE[1:]},
        "command": {"command": "npx", "args": ["server"]}, "off": {"url": URL, "disabled": True},
        "wrapped": wrap({"url": URL}, ["--deny", "^a"], ["mcp-tool-filter"]),
        "watched": wrap({"url": URL}, ["--deny", "^a", "--shadow"], ["mcp-tool-filter"]),
    }  # fmt: skip
    found, problems = listed_in(tmp_path, servers)
    assert problems == []
    ways = {one.name: (one.way, one.url, one.has_flag) for one in found}
    assert ways["url"] == (Way.URL, URL, True)
    assert ways["remote"] == (Way.MCP_REMOTE, URL, False)
    assert ways["command"][0] is Way.COMMAND
    assert ways.keys() == {"url", "remote", "command", "wrapped", "watched"}
    ours = {one.name: (one.way, one.filtering.by) for one in found if one.filtering.by}
    assert ours == {
        "wrapped": (Way.FILTERED, ("--deny", "^a")),
        "watched": (Way.WATCHED, ("--deny", "^a", "--shadow")),
    }
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
    here = Whereabouts(tmp_path, tmp_path / "project", {}, "linux")
    found, [problem] = run.servers_of("cursor", ["cursor"], here)
    assert found == []
    assert "mcp.json cannot be read" in problem


def test_a_file_or_json_on_the_command_line_counts_too(tmp_path: Path) -> None:
    here = Whereabouts(tmp_path, tmp_path, {}, "linux")
    text = json.dumps({"mcpServers": {"a": {"url": URL}}})
    (tmp_path / "own.json").write_text(text)
    for words in (["--mcp-config", "own.json"], [f"--mcp-config={text}"]):
        [server], _ = run.servers_of("claude-code", ["claude", *words], here)
        assert (server.name, server.where) == ("a", "--mcp-config")
    _, [problem] = run.servers_of("claude-code", ["claude", "--mcp-config", "missing.json"], here)
    assert problem.startswith("Cannot read --mcp-config missing.json")


@pytest.mark.parametrize(
    ("endpoint", "is_it"),
    [
        (URL, True), ("https://MCP.example:443/mcp/", True), ("https://mcp.example/other", False),
        ("http://mcp.example/mcp", False),
    ],
)  # fmt: skip
def test_two_spellings_of_a_url_are_equal(endpoint: str, is_it: bool) -> None:
    assert run.is_seen(named_server(f"{URL}?key=1"), seen(endpoint)) is is_it


@pytest.mark.parametrize(
    ("server", "known", "why"),
    [
        (named_server("https://${HOST}/mcp"), seen(), "its URL has a variable that is not set"),
        (named_server(URL), seen(refused=("mcp.example",)), "does not trust our certificate"),
        (named_server(URL), seen("https://mcp.example/"), "sent nothing to this URL"),
        (ServerOfClient("a", "f", Way.MCP_REMOTE, URL, False), seen(), "only with --enable-proxy"),
        (named_server(URL), seen(), "went around the filter"),
    ],
)
def test_an_unseen_server_has_a_reason(
    server: ServerOfClient, known: SeenTraffic, why: str
) -> None:
    assert why in run.why_not_seen(server, known)


def test_servers_that_are_commands_are_not_expected() -> None:
    servers = [ServerOfClient("c", "f", Way.COMMAND), named_server(URL)]
    assert run.not_seen(servers, seen()) == servers[1:]
    assert run.not_seen(servers, seen(URL)) == []


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def server(name: str, way: Way = Way.URL) -> ServerOfClient:
    return ServerOfClient(name, "a file", way, f"https://{name}.example/mcp")


def test_seen_and_unseen_servers_are_kept_for_each_client_and_their_user_alone(home: Path) -> None:
    both = [server("a"), server("b")]
    run.keep_last("codex", [*both, server("c", way=Way.COMMAND)], both[1:], seen())
    run.keep_last("cursor", [], [], seen())
    found = run.last_of("codex")
    assert found
    assert found.seen == ("a",)
    assert [one[:2] for one in found.missing] == [("b", "https://b.example/mcp")]
    assert run.state_file({"XDG_STATE_HOME": str(home)}).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{", '{"codex": 5}', '{"codex": {"ended": "x"}}'])
def test_an_unusable_file_is_ignored(content: str, home: Path) -> None:
    assert run.last_of("codex") is None
    file = run.state_file({"XDG_STATE_HOME": str(home)})
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert run.last_of("codex") is None
    run.keep_last("codex", [], [], seen())
    assert run.last_of("codex")


def test_a_file_that_cannot_be_written_does_no_harm(home: Path) -> None:
    (home / "mcp-tool-filter").write_text("a file where the folder should be")
    run.keep_last("codex", [], [], seen())
    assert run.last_of("codex") is None
