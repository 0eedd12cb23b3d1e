"""Settings as the command line and the environment give them, or what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mcp_tool_filter.cli.config_file import read_file
from mcp_tool_filter.cli.flags import UsageError, parse_flags
from mcp_tool_filter.cli.options import GONE
from mcp_tool_filter.cli.settings import Settings, Sources, read_settings, read_sources
from mcp_tool_filter.core.errors import StartError, UnsetVariable
from tests.rows import each_row

URL = "http://localhost:3000/mcp"


def settings(*argv: str, **environment: str) -> Settings:
    """What the words say, with MCP_TOOL_FILTER_X=… for each x."""
    named = {f"MCP_TOOL_FILTER_{name.upper()}": value for name, value in environment.items()}
    return read_settings(["--upstream", URL, *argv], named)


def test_verbose_and_quiet_set_the_log_level() -> None:
    assert [settings(*argv).verbosity for argv in (["-q"], [], ["-v"], ["-vv"])] == [-1, 0, 1, 2]
    assert settings(quiet="true").is_quiet
    assert settings(verbose="2").verbosity == 2


def test_switches_and_commands_are_read_as_people_write_them() -> None:
    for text, is_it in (("true", True), ("YES", True), ("1", True), ("off", False), ("0", False)):
        assert settings(insecure=text).insecure is is_it
    found = read_settings(["--upstream-cmd", "npx -y 'a b'", "--env", "KEY=a=b"], {})
    assert (found.command, found.env) == (("npx", "-y", "a b"), {"KEY": "a=b"})


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "filter.toml"
    file.write_text('port = 1\nhost = "127.0.0.3"\nmessage_limit = "3MB"\nallow = ["^c"]\n')
    found = settings("--config", str(file), "--port", "2", port="3", host="127.0.0.2")
    assert (found.port, found.host, found.texts["message_limit"]) == (2, "127.0.0.2", "3MB")
    assert settings("--endpoint", "/other", upstream="http://localhost:4000").endpoint == "/other"
    assert found.many("allow") == ("^c",)


def test_deny_patterns_of_all_sources_apply(tmp_path: Path) -> None:
    """A pattern more must never open what another place closes."""
    file = tmp_path / "filter.toml"
    file.write_text('deny = ["^a", "^b"]\n')
    found = settings("--deny", "^d", deny="^c", config=str(file))
    assert found.many("deny") == ("^a", "^b", "^c", "^d")


def test_lines_separate_values_in_the_environment() -> None:
    found = settings(
        header="Authorization: Bearer a, b\n\nX-Key: 1\n", deny="^a,\x85b\r\n^c", port=""
    )
    assert found.many("upstream_headers") == ("Authorization: Bearer a, b", "X-Key: 1")
    assert (found.many("deny"), found.port) == (("^a,\x85b", "^c"), 6273)


def test_a_file_may_begin_with_a_byte_order_mark_and_have_crlf(tmp_path: Path) -> None:
    """Editors on Windows write both."""
    file = tmp_path / "filter.toml"
    file.write_bytes(b'\xef\xbb\xbfdeny = ["^a"]\r\nport = 1\r\n')
    assert read_file(str(file)).top == {"deny": ["^a"], "port": ["1"]}


@each_row("name", GONE)
def test_an_option_that_is_gone_is_refused_with_what_to_do_instead(
    name: str, tmp_path: Path
) -> None:
    """Whoever sets it may rely on it, so nothing starts without it."""
    key, url = name.replace("-", "_"), f"url = '{URL}'"
    ways: list[Callable[[], object]] = [
        lambda: settings(f"--{name}=x"),
        lambda: settings(f"--{name}", "x"),
        lambda: settings(f"--set={key}=x"),
        lambda: settings(f"--set={name}=x"),
        lambda: settings(**{key: "x"}),
        *(
            partial(server, tmp_path, text.format(key))
            for key in (key, name)
            for text in (f"{{}} = true\n[servers.s]\n{url}", f"[servers.s]\n{url}\n{{}} = 'x'")
        ),
    ]
    for way in ways:
        with pytest.raises(UsageError, match="any more") as refused:
            way()
        assert name in refused.value.what.lower().replace("_", "-")
        assert refused.value.why == GONE[name]
        assert refused.value.exit_status == 2


def test_an_unknown_variable_gets_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert settings(quite_another="x", list_tools="1").port == 6273
    assert capsys.readouterr().err.splitlines() == [
        "Warning: MCP_TOOL_FILTER_QUITE_ANOTHER is not a setting and has no effect",
        "Warning: MCP_TOOL_FILTER_LIST_TOOLS has no effect: type --list-tools on the command line",
    ]
    assert settings(wrapped="{}", wrapped_login="{}").port == 6273
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["\n", " \n\t\n"])
@pytest.mark.parametrize("name", ["deny", "allow"])
def test_a_variable_of_empty_lines_is_refused(name: str, text: str) -> None:
    with pytest.raises(StartError, match=f"^Error: MCP_TOOL_FILTER_{name.upper()} has no pattern"):
        settings("--deny", "^a", **{name: text})


def test_a_single_setting_may_be_given_twice_if_it_is_the_same() -> None:
    assert settings("--port", "2", "--port", "2").port == 2


def test_a_file_may_contain_numbers_and_switches_without_quotes(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max-clients = 5\nmax_children = 2\nstrict = true\n")
    found = settings("--config", str(file))
    assert (found.texts["max_clients"], found.max_children) == ("5", 2)
    assert found.texts["strict"] == "true"


@each_row(("url", "origin", "endpoint"), [
    ("http://localhost:3000/mcp", "http://localhost:3000", "/mcp"),
    ("http://localhost:3000", "http://localhost:3000", ""),
    ("http://localhost:3000/", "http://localhost:3000", ""),
    ("localhost:3000/sse", "http://localhost:3000", "/sse"),
    ("https://example.com/a/mcp?k=1", "https://example.com", "/a/mcp?k=1"),
    ("HTTP://[::1]:3000/mcp", "http://[::1]:3000", "/mcp"),
    ("http://localhost:3000/mcp#there", "http://localhost:3000", "/mcp"),
])  # fmt: skip
def test_the_path_in_the_url_is_the_endpoint(url: str, origin: str, endpoint: str) -> None:
    found = read_settings(["--upstream", url], {})
    assert (found.origin, found.endpoint) == (origin, endpoint)


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


def test_a_flag_beats_the_environment_which_beats_the_server_which_beats_the_top(
    tmp_path: Path,
) -> None:
    text = 'message-limit = "2MB"\n[servers.s]\nurl = "localhost:1"\nmessage_limit = "3MB"'
    named, typed = {"MCP_TOOL_FILTER_MESSAGE_LIMIT": "4MB"}, ("--message-limit", "5MB")
    found = [server(tmp_path, text), server(tmp_path, text, **named)]
    found += [server(tmp_path, text, "s", *typed, **named)]
    assert [one.texts["message_limit"] for one in found] == ["3MB", "4MB", "5MB"]


@pytest.mark.parametrize(
    "line", ["env = {}", "env = []", "allowed-hosts = []", "set = []", "verbose = []"]
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


@pytest.mark.parametrize(("word", "is_beside"), [
    ("./x", True), ("bin/x", True), ("../x", True), ("x", False), ("/x", False),
])  # fmt: skip
def test_no_folder_in_which_we_start_can_plant_a_command(
    word: str, is_beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    file = tmp_path / "f.toml"
    file.write_text(f'[servers.s]\ncommand = ["{word}", "./y"]\n')
    monkeypatch.chdir(tmp_path / "project")
    found = read_sources({"config": [str(file)]}, {}).of_server("s")
    assert found.command == (f"{tmp_path}/{word}" if is_beside else word, "./y")


@pytest.mark.parametrize("text", [
    "url = 'http://localhost:1'\nheader = 'X-Key: $KEY'",
    "url = 'http://localhost:1/mcp?key=${KEY}'", "command = ['x']\nenv = {A = '$KEY'}",
])  # fmt: skip
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


@pytest.mark.parametrize("value", [
    "my secret", "secret://x y", "http://a:secret@h/", "http://[secret", "x://secret",
    "http://h//secret", "http://h/secret\u00e9", "http://h:secret/",
])  # fmt: skip
def test_a_bad_url_is_refused_without_the_value_of_its_variable(tmp_path: Path, value: str) -> None:
    with pytest.raises(StartError) as caught:
        server(tmp_path, "[servers.s]\nurl = '${KEY}'", KEY=value)
    assert "${KEY} is not a valid URL" in str(caught.value)
    assert "secret" not in str(caught.value)
