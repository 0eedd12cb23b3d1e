"""The command line, the environment and the file, brought together and checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.cli.config_file import read_file
from mcp_tool_filter.cli.flags import UsageError
from mcp_tool_filter.cli.settings import read_settings
from mcp_tool_filter.errors import InvalidOption
from tests.cli.reading import complaint, settings


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--stdio"],
            "Error: --stdio needs a server\n"
            "mcp-tool-filter --stdio --upstream URL, or mcp-tool-filter -- COMMAND ARGS",
        ),
        (
            ["--upstream-cmd", "npx 'a"],
            "Error: --upstream-cmd cannot be split into words\nNo closing quotation",
        ),
        (
            ["-u", "npx -y a-server"],
            "Error: --upstream is not a valid URL\n"
            "A server's command comes after --: mcp-tool-filter -- npx -y a-server",
        ),
    ],
)
def test_mixing_up_commands_and_urls_gives_the_right_command_line(
    argv: list[str], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        read_settings(argv, {})
    assert str(raised.value) == said


@pytest.mark.parametrize("flag", ["--rules", "--audit-log", "--lock"])
def test_a_flag_for_a_file_needs_one(flag: str) -> None:
    """--rules "$RULES" started a filter without rules where the variable was not set."""
    said = f"Error: {flag} has no file\nName one, or leave the flag out"
    assert complaint(flag, "") == said
    variable = f"MCP_TOOL_FILTER_{flag[2:].replace('-', '_').upper()}"
    with pytest.raises(UsageError, match=f"^Error: {flag} has no file"):
        read_settings(["-u", "localhost"], {variable: ""})


def test_an_empty_address_does_not_listen_on_every_address() -> None:
    with pytest.raises(InvalidOption, match="for --host: ''"):
        read_settings(["-u", "localhost", "--host", ""], {})


def test_a_second_upstream_is_refused_with_advice() -> None:
    said = complaint("-u", "http://localhost:4000/mcp")
    assert said.startswith("Error: --upstream is given twice\nFor two upstreams start two filters")
    assert "--mode reverse:URL1@PORT1 --mode reverse:URL2@PORT2" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--port", "x"], "Error: --port cannot be x\nIt must be a number from 0 to 65535"),
        (["--port", "65536"], "Error: --port cannot be 65536\nIt must be a number from 0 to 65535"),
        *(
            (
                ["--max-children", text],
                f"Error: --max-children cannot be {text}\nIt must be a number from 1 to 65535",
            )
            for text in ("99999", "100000", "", "1.0", "0")
        ),
        (
            ["--log-format", "xml"],
            "Error: --log-format cannot be xml\nIt must be one of: text, json, none",
        ),
        *(
            (["--env", text], "Error: Write --env as KEY=VALUE\nSee mcp-tool-filter --help")
            for text in ("KEY", "=secret", "KEY=secret\0")
        ),
        (
            ["--connection-timeout", "soon"],
            "Error: Invalid value for --connection-timeout: 'soon'\n"
            "It must be a number of milliseconds, 1 or more",
        ),
        (
            ["--message-limit", "1000"],
            "Error: Invalid value for --message-limit: '1000'\n"
            "It must be a size of at least 1KB with its unit, such as 500KB or 10MB",
        ),
        (
            ["--deny", "^[a-z"],
            'Error: Invalid regex pattern in deny list: "^[a-z"\n'
            "Pattern must be valid JavaScript regex",
        ),
        (
            ["--header", "Authorization: $NO_SUCH_VARIABLE"],
            "Error: Invalid value for --header: 'Authorization'\n"
            "The environment variable NO_SUCH_VARIABLE is not set",
        ),
        (
            ["--set", "deny=^a"],
            "Error: --set deny=…: use --deny instead\nSee mcp-tool-filter --help",
        ),
        (
            ["--set", "upstream_headers=a: b"],
            "Error: --set upstream_headers=…: use --header instead\nSee mcp-tool-filter --help",
        ),
    ],
)
def test_a_wrong_setting_names_the_flag_that_was_typed(argv: list[str], said: str) -> None:
    if argv[0] == "--env":  # of a command
        with pytest.raises(UsageError) as raised:
            read_settings([*argv, "--", "x"], {})
        assert str(raised.value) == said
    else:
        assert complaint(*argv) == said


def test_verbose_and_quiet_set_the_log_level() -> None:
    assert [settings(*argv).verbosity for argv in (["-q"], [], ["-v"], ["-vv"])] == [-1, 0, 1, 2]
    assert settings(quiet="true").is_quiet
    assert settings(verbose="2").verbosity == 2


def test_switches_and_commands_are_read_as_people_write_them() -> None:
    for text, is_it in (("true", True), ("YES", True), ("1", True), ("off", False), ("0", False)):
        assert settings(insecure=text).insecure is is_it
    assert "insecure cannot be maybe" in complaint(insecure="maybe")
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
    found = settings(header="Authorization: Bearer a, b\n\nX-Key: 1\n", deny="^a,^b", port="")
    assert found.many("upstream_headers") == ("Authorization: Bearer a, b", "X-Key: 1")
    assert (found.many("deny"), found.port) == (("^a,^b",), 6273)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('dney = "^a"', "called dney: did you mean deny?"),
        ("port = [1, 2]", "must be one value"),
        ("[deny]\na = 1", "deny in {file} cannot be a table\nWrite it as deny = "),
        ("port = 1.5", "port in {file} cannot be a fraction\nWrite it as port = 1"),
        ("port = true", "port in {file} cannot be true or false"),
        ("deny = 3", 'cannot be a number\nWrite it as deny = "PATTERN" or deny = ["PATTERN"]'),
        ("max-clients = true", "cannot be true or false\nWrite it as max-clients = 1"),
        ("strict = 1", "strict in {file} cannot be a number\nWrite it as strict = true"),
        ("deny = [3]", "deny in {file} cannot be a number"),
        ('deny = ["^a", false]', "deny in {file} cannot be true or false"),
        ('deny = [["^a"]]', "deny in {file} cannot be a list"),
        ("deny = [2026-01-01T00:00:00Z]", "deny in {file} cannot be a date or time"),
        ("host = 1", 'host in {file} cannot be a number\nWrite it as host = "ADDRESS"'),
        ("insecure = 1", "insecure in {file} cannot be a number\nWrite it as insecure = true"),
        ("deny = []", "deny in {file} has no pattern"),
        ('deny = ["", " "]', "deny in {file} has no pattern"),
        ('message_limit = "1MB"\nmessage-limit = "2MB"', "message-limit is in {file} twice"),
        ("port = ", "is not TOML"),
        ("help = true", "called help"),
    ],
)
def test_a_file_with_an_unknown_setting_is_refused(text: str, part: str, tmp_path: Path) -> None:
    file = tmp_path / "filter.toml"
    file.write_text(text)
    assert part.replace("{file}", str(file)) in complaint("--config", str(file))


def test_a_file_that_is_not_utf_8_gives_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "filter.toml"
    file.write_bytes(b"\xff\xfe")
    wanted = f"Error: The config file {file} is not UTF-8\nSave it as UTF-8"
    assert complaint("--config", str(file)) == wanted


def test_a_file_may_begin_with_a_byte_order_mark_and_have_crlf(tmp_path: Path) -> None:
    """Editors on Windows write both."""
    file = tmp_path / "filter.toml"
    file.write_bytes(b'\xef\xbb\xbfdeny = ["^a"]\r\nport = 1\r\n')
    assert read_file(str(file)).top == {"deny": ["^a"], "port": ["1"]}


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in complaint("--config", str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("name", "meant"), [("dney", "DENY"), ("denys", "DENY"), ("deny_tools", "DENY")]
)
def test_a_misspelt_variable_is_refused(name: str, meant: str) -> None:
    """Ignored it would leave open what the user thinks is closed."""
    assert f"did you mean MCP_TOOL_FILTER_{meant}?" in complaint(**{name: "^a"})


def test_a_retired_setting_is_accepted_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """Old files and scripts must not stop the start, nor hear nothing."""
    said = "Warning: --fast has no effect any more: there are no speed-ups to turn off\n"
    assert settings("--fast=false").texts["fast"] == "true"
    assert capsys.readouterr().err == said
    assert settings(fast="true").texts["fast"] == "true"
    assert capsys.readouterr().err == said


def test_an_unknown_variable_gets_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert settings(quite_another="x", list_tools="1").port == 6273
    assert capsys.readouterr().err.splitlines() == [
        "Warning: MCP_TOOL_FILTER_QUITE_ANOTHER is not a setting and has no effect",
        "Warning: MCP_TOOL_FILTER_LIST_TOOLS has no effect: type --list-tools on the command line",
    ]
    assert settings(wrapped="{}", wrapped_login="{}").port == 6273
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["", " ", "\n", " \n\t\n"])
@pytest.mark.parametrize("name", ["deny", "allow"])
def test_an_empty_variable_is_refused(name: str, text: str) -> None:
    """A compose file passes ${DENY} on even if it is not set."""
    variable = f"MCP_TOOL_FILTER_{name.upper()}"
    for typed in ("", ",", "a,", " ", "a, "):
        assert "pattern in" in complaint(f"--{name}", typed)
    assert complaint(**{name: text}).startswith(f"Error: {variable} has no pattern\n")
    assert complaint("--deny", "^a", **{name: text}).startswith(f"Error: {variable} has no")


def test_a_single_setting_given_twice_is_refused(tmp_path: Path) -> None:
    """A second --config would silently drop what the first denies."""
    assert "--config is given twice" in complaint("--config", "a.toml", "--config", "b.toml")
    assert settings("--port", "2", "--port", "2").port == 2


def test_a_file_may_contain_numbers_and_switches_without_quotes(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max-clients = 5\nmax_children = 2\nstrict = true\n")
    found = settings("--config", str(file))
    assert (found.texts["max_clients"], found.max_children) == ("5", 2)
    assert found.texts["strict"] == "true"


@pytest.mark.parametrize(
    ("url", "origin", "endpoint"),
    [
        ("http://localhost:3000/mcp", "http://localhost:3000", "/mcp"),
        ("http://localhost:3000", "http://localhost:3000", ""),
        ("http://localhost:3000/", "http://localhost:3000", ""),
        ("localhost:3000/sse", "http://localhost:3000", "/sse"),
        ("https://example.com/a/mcp?k=1", "https://example.com", "/a/mcp?k=1"),
        ("HTTP://[::1]:3000/mcp", "http://[::1]:3000", "/mcp"),
        ("http://localhost:3000/mcp#there", "http://localhost:3000", "/mcp"),
    ],
)
def test_the_path_in_the_url_is_the_endpoint(url: str, origin: str, endpoint: str) -> None:
    found = read_settings(["--upstream", url], {})
    assert (found.origin, found.endpoint) == (origin, endpoint)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "Missing --upstream URL"),
        ("ftp://localhost", "Unsupported URL scheme: ftp"),
        ("http://", "--upstream is not a valid URL"),
        ("http://localhost:99999", "is not a valid URL"),
        ("http://user:hunter2@localhost/", "Credentials in --upstream would be shown"),
        ("http://user:hunter2#@localhost/", "is not a valid URL"),
    ],
)
def test_an_invalid_upstream_is_refused_without_showing_a_password(url: str, part: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_settings(["--upstream", url], {})
    assert part in str(raised.value)
    assert "hunter2" not in str(raised.value)
