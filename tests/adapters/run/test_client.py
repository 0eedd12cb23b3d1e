"""The client that we start: a real process with our streams."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.run.client import CannotRun, find_program, run_client
from mcp_tool_filter.errors import StartError


async def ran(code: str, cwd: str | None = None) -> int:
    return await run_client([sys.executable, "-c", code], os.environ, cwd)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
    ],
)
async def test_the_clients_exit_status_is_that_of_a_shell(code: str, status: int) -> None:
    assert await ran(code) == status


async def test_the_client_runs_in_the_given_folder(tmp_path: Path) -> None:
    assert await ran("open('here', 'w')", str(tmp_path)) == 0
    assert (tmp_path / "here").exists()
    with pytest.raises(StartError, match="There is no such folder"):
        await ran("", str(tmp_path / "missing"))


async def test_signals_are_passed_on_to_the_client(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))\n"
        "os.kill(os.getppid(), signal.SIGUSR1)\n"
        "signal.pause()"
    )
    assert await ran(code) == 7


def test_a_program_is_looked_up_in_the_clients_path(tmp_path: Path) -> None:
    program = tmp_path / "client"
    program.touch(0o755)
    assert find_program(["client"], {"PATH": str(tmp_path)}) == str(program)


@pytest.mark.parametrize(
    ("is_there", "status", "why"),
    [(False, 127, "Command not found"), (True, 126, "Permission denied")],
)
def test_a_program_that_cannot_run_has_a_reason_and_a_shells_status(
    is_there: bool, status: int, why: str, tmp_path: Path
) -> None:
    program = tmp_path / "client"
    if is_there:
        program.touch(0o644)
    with pytest.raises(CannotRun) as caught:
        find_program([str(program)], {"PATH": ""})
    assert (caught.value.exit_status, caught.value.why) == (status, why)


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        ("#!/no/such/shell\n", 127, "there is no /no/such/shell, which its first line names"),
        ("echo\n", 126, "A script's first line must name what runs it"),
    ],
)
async def test_a_script_that_cannot_run_has_a_reason(
    text: str, status: int, why: str, tmp_path: Path
) -> None:
    """For each of them the system says no more than for a command that is not there."""
    program = tmp_path / "client"
    program.write_text(text)
    program.chmod(0o755)
    with pytest.raises(CannotRun) as caught:
        await run_client([str(program)], {}, None)
    assert caught.value.exit_status == status
    assert why in caught.value.why


def test_a_folder_is_not_a_program(tmp_path: Path) -> None:
    with pytest.raises(CannotRun) as caught:
        find_program([str(tmp_path)], {})
    assert (caught.value.exit_status, caught.value.why) == (
        126,
        f"{tmp_path} is a folder, not a program",
    )
