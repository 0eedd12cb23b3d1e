"""The file with a table for each server."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.cli.config_file import read_file
from mcp_tool_filter.cli.flags import parse_flags
from mcp_tool_filter.cli.settings import Settings, Sources, read_sources
from mcp_tool_filter.errors import StartError, UnsetVariable


def server(folder: Path, text: str, name: str = "s", *argv: str, **variables: str) -> Settings:
    """Return the settings of a server of a file with this text."""
    return sources(folder, text, *argv, **variables).of_server(name)


def sources(folder: Path, text: str, *argv: str, **variables: str) -> Sources:
    file = folder / "filter.toml"
    file.write_text(text)
    return read_sources(parse_flags(["--config", str(file), *argv]), variables)


def test_a_server_is_a_command_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = """
    [servers.files]
    command = ["npx", "~/bin", "$HOME", "a~/b"]
    env = {DEBUG = "$DEBUG-${DEBUG}$$"}
    [servers."team.x"]
    url = "https://mcp.example/v1/mcp?key=$KEY&x=$$y"
    header = ["X-Team: blue"]
    """
    files = server(tmp_path, text, "files", DEBUG="1")
    assert files.command == ("npx", "/home/me/bin", "$HOME", "a~/b")
    assert (files.env, files.cwd, files.name) == ({"DEBUG": "1-1$"}, None, "files")
    assert not files.is_stdio
    assert sources(tmp_path, text, DEBUG="1").of_server("files", is_stdio=True).is_stdio
    team = server(tmp_path, text, "team.x", KEY="s3cret")
    assert (team.upstream, team.command) == ("https://mcp.example/v1/mcp?key=s3cret&x=$y", ())
    assert team.config().upstream_headers == (("X-Team", "blue"),)


def test_a_servers_own_settings_and_those_of_all_are_combined(tmp_path: Path) -> None:
    """Deny and except add up, a tool must match both allow lists, and all else is overridden."""
    text = """
    deny = ["^a"]
    except = "^x"
    allow = "^t"
    strict = true
    message-limit = "2MB"
    env = ["A=$ONE"]
    [servers.s]
    url = "http://localhost:1"
    deny = "^b"
    except = "^y"
    allow = "^u"
    strict = false
    [servers.t]
    command = ["t"]
    """
    found = server(tmp_path, text, "s", "--deny", "^c")
    assert found.many("deny") == ("^a", "^c", "^b")
    assert found.many("except") == ("^x", "^y")
    assert (found.many("allow"), found.allow_too) == (("^u",), ("^t",))
    assert (found.texts["strict"], found.texts["message_limit"]) == ("false", "2MB")
    text = text.replace('"^t"', '"t"').replace('"^u"', '"u"')
    choice = server(tmp_path, text, "s").config().choice
    exposed = [name for name in ("t", "u", "tu", "b_tu", "yb_tu") if choice.hiding(name) is None]
    assert exposed == ["tu", "yb_tu"]
    other = server(tmp_path, text, "t", MCP_TOOL_FILTER_DENY="^e", ONE="1")
    assert (other.many("deny"), other.many("allow")) == (("^a", "^e"), ("t",))
    assert (other.allow_too, other.texts["strict"], other.env) == ((), "true", {"A": "1"})
    with pytest.raises(UnsetVariable, match="ONE is not set"):
        server(tmp_path, text, "t")
    command = sources(tmp_path, 'env = ["A=$ONE"]', "--", "x", ONE="1").given()
    assert command["env"] == ["A=1"], "for an only command, too"


@pytest.mark.parametrize(
    ("flags", "variables", "expected"),
    [
        ((), {}, "3MB"),
        ((), {"MCP_TOOL_FILTER_MESSAGE_LIMIT": "4MB"}, "4MB"),
        (("--message-limit", "5MB"), {"MCP_TOOL_FILTER_MESSAGE_LIMIT": "4MB"}, "5MB"),
    ],
)
def test_a_flag_beats_the_environment_which_beats_the_server_which_beats_the_top(
    flags: tuple[str, ...], variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    text = 'message-limit = "2MB"\n[servers.s]\nurl = "localhost:1"\nmessage_limit = "3MB"'
    assert server(tmp_path, text, "s", *flags, **variables).texts["message_limit"] == expected


@pytest.mark.parametrize(
    "line", ["env = {}", "env = []", "allowed-hosts = []", "header-paths = []", "verbose = []"]
)
def test_an_empty_list_or_table_sets_nothing(line: str, tmp_path: Path) -> None:
    text = f"{line}\n[servers.s]\ncommand = ['x']"
    (settings := server(tmp_path, text)).config()
    assert settings.env == {}
    found = sources(tmp_path, text).file
    assert found is not None
    assert found.top == {}


def test_relative_files_are_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/f.toml").write_text(
        'audit-log = "a.jsonl"\ncert = "*.example=c.pem"\n'
        '[servers.s]\ncommand = ["./x"]\nrules = "../r=1.yaml"\ncwd = "/abs"\n'
    )
    found = read_sources({"config": ["conf/f.toml"]}, {}).of_server("s")
    assert found.texts["rules"] == f"{tmp_path}/conf/../r=1.yaml"
    assert found.texts["audit_log"] == f"{tmp_path}/conf/a.jsonl"
    assert found.cert == f"*.example={tmp_path}/conf/c.pem"
    assert (found.command, found.cwd) == (("./x",), "/abs")


URL = '[servers.s]\nurl = "http://localhost:1/mcp"\n'
USELESS = "[servers.s]\ncommand = ['x']\n%s = '/a'\n%s = '/a'\n%s = '/a'"  # the first is named


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (URL + 'dney = "x"', "setting in [servers.s] of {file} called dney: did you mean deny?"),
        (URL + 'port = "1"', "port in [servers.s] of {file} is for the whole process\nWrite it at"),
        (URL + "audit-log = 'x'", "audit-log in [servers.s] of {file} is for the whole process"),
        ("[servers.s]\nupstream = 'x'", "called upstream: did you mean url?"),
        ("[servers.s]\nupstream-cmd = 'x'", "called upstream-cmd: did you mean command?"),
        ("[servers.s]\nstdio = true", "called stdio"),
        ("[servers.s]\nlist-tools = true", "called list-tools"),
        ("[servers.s]\ndeny = 'x'", "[servers.s] of {file} has no url and no command"),
        (URL + "command = ['x']", "[servers.s] of {file} has url and command\nGive one of them"),
        ("[servers.s]\ncommand = 'npx x'", "command in [servers.s] of {file} must be a list"),
        ("[servers.s]\ncommand = []", "command in [servers.s] of {file} must be a list"),
        ("[servers.s]\ncommand = ['x', 1]", "must be a list of words\nWrite it as command = ["),
        ("[servers.s]\ncommand = ['']", "names no program"),
        ("[servers.s]\nurl = ['x']", "url in [servers.s] of {file} must be a text"),
        ("[servers.s]\nurl = ''", "url in [servers.s] of {file} must be a text"),
        ("[servers.s]\ncommand = ['x']\nheader = 'A: b'", "header in [servers.s] of {file} has no"),
        (USELESS % ("ca", "endpoint", "login"), "ca in [servers.s] of {file} has no effect"),
        (USELESS % ("login", "ca", "endpoint"), "login in [servers.s] of {file} has no effect"),
        (USELESS % ("endpoint", "login", "ca"), "endpoint in [servers.s] of {file} has no effect"),
        (URL + "env = {A = 'b'}", "env in [servers.s] of {file} has no effect\nIt is for a comm"),
        ("[servers.s]\ncommand = ['x']\nenv = {A = 1}", "A of env in [servers.s] of {file} must"),
        ("[servers.s]\ncommand = ['x']\nenv = {'A=B' = 'c'}", 'of {file} cannot set "A=B"\nThat n'),
        ("[servers.s]\ncommand = ['x']\nenv = {'' = 'c'}", 'cannot set ""'),
        (URL + "deny = []", "deny in [servers.s] of {file} has no pattern"),
        (URL + "deny = 3", "deny in [servers.s] of {file} cannot be a number"),
        (URL + "message-limit='1MB'\nmessage_limit='2MB'", "is in [servers.s] of {file} twice"),
        (URL + 'deny = "("', '[servers.s] in {file}: Invalid regex pattern in deny list: "("'),
        (URL + "message-limit = 'x'", "[servers.s] in {file}: Invalid value for message-limit"),
        ("[servers.s]\nurl = 'ftp://x'", "[servers.s] in {file}: Unsupported URL scheme: ftp"),
        ("[servers.s]\nurl = 'http://me:pw@x'", "[servers.s] in {file}: Credentials in upstream"),
        ("header = 'A: b'\n" + URL, "header cannot be at the top of {file}: all servers would"),
        ("command = ['x']\n" + URL, "command cannot be at the top of {file}"),
        ("url = 'x'\n" + URL, "url cannot be at the top of {file}"),
        ("[server.s]\nurl = 'x'", "called server: did you mean servers?"),
        ("servers = 1", "servers in {file} must be tables\nWrite [servers.NAME]"),
        ("[servers]\ns = 1", "servers.s in {file} must be a table"),
        ("[[servers.s]]\nurl = 'x'", "servers.s in {file} must be a table"),
        ("[servers.'a b']\nurl = 'x'", 'A server in {file} cannot be called "a b"'),
        ("[servers.'.a']\nurl = 'x'", 'A server in {file} cannot be called ".a"'),
        ("[servers.'a/b']\nurl = 'x'", 'A server in {file} cannot be called "a/b"'),
        ("[servers.'ä']\nurl = 'x'", 'A server in {file} cannot be called "ä"'),
        ('[servers."a\\nb"]\nurl = "x"', 'A server in {file} cannot be called "a\\nb"'),
        (f"[servers.{'a' * 65}]\nurl = 'x'", "A server in {file} cannot be called"),
        ("[servers.t]\nurl = 'x'", "There is no server s in {file}\nIts servers: t"),
        ("[servers.ss]\nurl = 'x'", "There is no server s in {file}: did you mean ss?"),
    ],
)
def test_a_mistake_names_the_file_the_server_and_the_key(
    text: str, part: str, tmp_path: Path
) -> None:
    with pytest.raises(StartError) as raised:
        server(tmp_path, text)
    said = str(raised.value)
    assert part.replace("{file}", str(tmp_path / "filter.toml")) in said
    assert len(said.splitlines()) == 2
    assert "pw" not in said


@pytest.mark.parametrize(
    "text",
    [
        "url = 'http://localhost:1'\nheader = 'X-Key: $KEY'",
        "url = 'http://localhost:1/mcp?key=${KEY}'",
        "command = ['x']\nenv = {A = '$KEY'}",
    ],
)
def test_an_unset_variable_concerns_its_server_only(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"[servers.s]\n{text}\n[servers.other]\ncommand = ['y']"
    with pytest.raises(UnsetVariable, match=r"\[servers.s\] in .*\n.*KEY is not set"):
        server(tmp_path, text)
    assert server(tmp_path, text, "other").command == ("y",)
    monkeypatch.setenv("KEY", "1")
    assert server(tmp_path, text, KEY="1").name == "s"


def test_a_server_over_stdio_ignores_what_the_file_says_about_listening(tmp_path: Path) -> None:
    text = "port = 1\ndashboard = 2\nmetrics-port = 3\n[servers.s]\ncommand = ['x']"
    found = sources(tmp_path, text).of_server("s", is_stdio=True)
    assert (found.is_stdio, found.texts["dashboard"], found.texts["metrics_port"]) == (True, "", "")


def test_the_default_file_is_read_if_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in the current folder is not: it may come with a repository."""
    folder = tmp_path / "config/mcp-tool-filter"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    (folder / "config.toml").write_text("deny = '^a'\nport = 7\ndashboard = 8\n")
    here = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    for surrounding, expected in [({}, None), ({"XDG_CONFIG_HOME": ".."}, None), (here, ["^a"])]:
        typed = parse_flags(["--upstream", "localhost:1"])
        assert read_sources(typed, surrounding).given().get("deny") == expected
    command = read_sources(parse_flags(["--", "x"]), here).given()
    assert command == {"deny": ["^a"], "command": ["x"]}, "a command's clients talk over stdio"
    assert read_sources(parse_flags(["--port", "9", "--", "x"]), here).given()["dashboard"] == ["8"]
    (folder / "config.toml").write_text("header = 'A: b'")
    with pytest.raises(StartError, match="header cannot be at the top"):
        read_sources({}, here)
    home = tmp_path / "home/.config/mcp-tool-filter"
    home.mkdir(parents=True)
    (home / "config.toml").write_text("deny = '^h'")
    assert read_sources({}, {"HOME": str(tmp_path / "home")}).given() == {"deny": ["^h"]}


def test_a_file_without_servers_may_have_headers_at_the_top(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("header = 'A: b'")
    assert read_file(str(file)).top == {"header": ["A: b"]}
