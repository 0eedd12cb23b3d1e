"""What is refused before anything starts."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.launcher import main


@pytest.mark.parametrize(
    "server", [["--", "false"], ["--stdio", "--upstream", "http://127.0.0.1:1/mcp"]]
)
@pytest.mark.parametrize("flag", ["dashboard"])
def test_flags_that_stdio_does_not_support_are_refused(
    flag: str, server: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--deny", "^a", f"--{flag}", "0", *server]) == 2
    err = capsys.readouterr().err
    assert f"Error: --{flag} does not work over stdio\n" in err
    assert "--port" in err
