"""What is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main


@pytest.mark.parametrize(
    "server", [["--", "false"], ["--stdio", "--upstream", "http://127.0.0.1:1/mcp"]]
)
@pytest.mark.parametrize("flag", ["audit-log", "dashboard", "metrics-port"])
def test_what_stdio_cannot_do_is_refused(
    flag: str, server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = str(tmp_path / "audit.jsonl") if flag == "audit-log" else "0"
    assert main(["--deny", "^a", f"--{flag}", value, *server]) == 2
    err = capsys.readouterr().err
    assert f"Error: --{flag} does not work over stdio\n" in err
    assert "--port" in err
