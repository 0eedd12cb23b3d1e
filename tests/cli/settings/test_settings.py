"""The command line, the environment and the file, brought together."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.settings.settings import read_settings
from mcp_tool_filter.cli.settings.usage import UsageError
from mcp_tool_filter.errors import InvalidOption
from tests.cli.settings.reading import complaint, settings


def test_the_endpoint_flag_overrides_the_path_in_the_url() -> None:
    assert settings("--endpoint", "/other").endpoint == "/other"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--stdio"],
            "Error: --stdio needs a server\n"
            "mcp-tool-filter --stdio --upstream URL, or mcp-tool-filter -- COMMAND ARGS",
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


@pytest.mark.parametrize("flag", ["--rules", "--audit-log"])
def test_a_flag_for_a_file_needs_one(flag: str) -> None:
    """--rules "$RULES" started a filter without rules where the variable was not set."""
    said = f"Error: {flag} has no file\nName one, or leave the flag out"
    assert complaint(flag, "") == said


def test_a_second_upstream_is_refused_with_advice() -> None:
    said = complaint("-u", "http://localhost:4000/mcp")
    assert said.startswith("Error: --upstream is given twice\nFor two upstreams start two filters")
    assert "--mode reverse:URL1@PORT1 --mode reverse:URL2@PORT2" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--port", "x"], "Error: --port cannot be x\nIt must be a number from 0 to 65535"),
        (["--port", "65536"], "Error: --port cannot be 65536\nIt must be a number from 0 to 65535"),
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
    assert complaint(*argv) == said


def test_a_start_error_gives_status_1_and_a_usage_error_2() -> None:
    with pytest.raises(InvalidOption):
        settings("--message-limit", "huge").config()
    assert UsageError("").exit_status == 2


def test_verbose_and_quiet_set_the_log_level() -> None:
    assert [settings(*argv).verbosity for argv in (["-q"], [], ["-v"], ["-vv"])] == [-1, 0, 1, 2]
    assert settings(quiet="true").is_quiet
    assert settings(verbose="2").verbosity == 2
