"""Settings from the command line, the environment and a file, brought together."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.cli.settings.sources import read_file
from tests.cli.settings.reading import complaint, settings


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "filter.toml"
    file.write_text('port = 1\nhost = "127.0.0.3"\nmessage_limit = "3MB"\nallow = ["^c"]\n')
    found = settings("--config", str(file), "--port", "2", port="3", host="127.0.0.2")
    assert (found.port, found.host, found.message_limit) == (2, "127.0.0.2", "3MB")
    assert found.allow == ("^c",)


def test_deny_patterns_of_all_sources_apply(tmp_path: Path) -> None:
    """A pattern more must never open what another place closes."""
    file = tmp_path / "filter.toml"
    file.write_text('deny = ["^a", "^b"]\n')
    found = settings("--config", str(file), "--deny", "^d", deny="^c")
    assert found.deny == ("^a", "^b", "^c", "^d")


def test_lines_separate_values_in_the_environment() -> None:
    found = settings(header="Authorization: Bearer a, b\nX-Key: 1", deny="^a,^b")
    assert found.headers == ("Authorization: Bearer a, b", "X-Key: 1")
    assert found.deny == ("^a,^b",)


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "filter.toml"
    file.write_text("insecure = true\nport = 99\n")
    assert settings(config=str(file)).port == 99


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
        ("fast = 1", "fast in {file} cannot be a number\nWrite it as fast = true"),
        ("deny = [3]", "deny in {file} cannot be a number"),
        ("deny = [0]", "deny in {file} cannot be a number"),
        ('deny = ["^a", false]', "deny in {file} cannot be true or false"),
        ('deny = [["^a"]]', "deny in {file} cannot be a list"),
        ("deny = [[]]", "deny in {file} cannot be a list"),
        ("deny = true", "deny in {file} cannot be true or false"),
        ("deny = 2026-01-01", "deny in {file} cannot be a date or time"),
        ("deny = [2026-01-01T00:00:00Z]", "deny in {file} cannot be a date or time"),
        ("host = 1", 'host in {file} cannot be a number\nWrite it as host = "ADDRESS"'),
        ("insecure = 1", "insecure in {file} cannot be a number\nWrite it as insecure = true"),
        ("deny = []", "deny in {file} has no pattern"),
        ('deny = ""', "deny in {file} has no pattern"),
        ('deny = ["", " "]', "deny in {file} has no pattern"),
        ("allow = []", "allow in {file} has no pattern"),
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
    assert read_file(str(file)) == {"deny": ["^a"], "port": ["1"]}


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in complaint("--config", str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("name", "meant"), [("dney", "DENY"), ("denys", "DENY"), ("deny_tools", "DENY")]
)
def test_a_misspelt_variable_is_refused(name: str, meant: str) -> None:
    """Ignored it would leave open what the user thinks is closed."""
    assert f"did you mean MCP_TOOL_FILTER_{meant}?" in complaint(**{name: "^a"})


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
    assert complaint(**{name: text}).startswith(f"Error: {variable} has no pattern\n")
    assert complaint("--deny", "^a", **{name: text}).startswith(f"Error: {variable} has no")


@pytest.mark.parametrize("text", ["", ",", "a,", " ", "a, "])
@pytest.mark.parametrize("flag", ["--deny", "--allow"])
def test_an_empty_flag_is_refused(flag: str, text: str) -> None:
    assert "pattern in" in complaint(flag, text)


def test_other_variables_may_be_empty() -> None:
    assert settings(port="", header="").port == 6273


def test_blank_lines_between_patterns_are_ignored() -> None:
    assert settings(deny="^a\n\n^b\n").deny == ("^a", "^b")


def test_an_upstream_flag_overrides_the_environment() -> None:
    assert settings(upstream="http://localhost:4000").origin == "http://localhost:3000"


def test_a_single_setting_given_twice_is_refused(tmp_path: Path) -> None:
    """A second --config would silently drop what the first denies."""
    assert "--config is given twice" in complaint("--config", "a.toml", "--config", "b.toml")
    assert settings("--port", "2", "--port", "2").port == 2


def test_variables_of_other_programs_are_ignored() -> None:
    assert settings(token="secret").port == 6273


def test_a_file_may_contain_numbers_and_switches_without_quotes(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max-clients = 5\nmax_children = 2\nfast = false\n")
    found = settings("--config", str(file))
    assert (found.max_clients, found.max_children, found.fast) == ("5", 2, "false")
