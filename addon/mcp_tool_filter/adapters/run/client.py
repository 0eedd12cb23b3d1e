"""Run the client: it keeps the terminal, and gets the signals meant for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from mcp_tool_filter.adapters.stdio.child import why_not_started
from mcp_tool_filter.errors import StartError

_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_TERMINALS = ("SIGINT", "SIGQUIT")
"""A terminal sends these to the client itself."""
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CannotRun(StartError):
    """The client cannot be started; the exit status is the one that shells use."""

    def __init__(self, program: str, error: OSError, *, file: str) -> None:
        is_missing = isinstance(error, FileNotFoundError) and not os.path.isdir(file)
        self.exit_status = _NOT_FOUND if is_missing else _NOT_EXECUTABLE
        if is_missing and not os.path.exists(file):
            why = "Command not found"
        elif isinstance(error, PermissionError):
            why = "Permission denied"
        else:
            why = why_not_started(error, program, file)
        super().__init__(f"Cannot start {program}", why=why)


def find_program(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the program that a command names. Raises CannotRun."""
    found = shutil.which(command[0], path=environment.get("PATH"))
    if found is None:
        error = PermissionError() if os.path.isfile(command[0]) else FileNotFoundError()
        raise CannotRun(command[0], error, file=command[0])
    return found


async def run_client(
    command: Sequence[str], environment: Mapping[str, str], cwd: str | None
) -> int:
    """Run a client until it ends; return its exit status like a shell."""
    program = find_program(command, environment)
    if cwd is not None and not os.path.isdir(cwd):
        raise StartError(f"Cannot start {command[0]} in {cwd}", why="There is no such folder")
    loop = asyncio.get_running_loop()
    waiting: list[int] = []  # signals that came before the client had started
    client: asyncio.subprocess.Process | None = None

    def pass_on(number: int) -> None:
        if client is None:
            waiting.append(number)
        else:
            with suppress(ProcessLookupError):
                client.send_signal(number)

    def unless_from_terminal(number: int) -> None:
        if not _is_in_foreground():
            pass_on(number)

    for names, act in ((_PASSED_ON, pass_on), (_FROM_TERMINALS, unless_from_terminal)):
        for name in names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                with suppress(NotImplementedError):  # Windows
                    loop.add_signal_handler(number, act, number)
    try:
        client = await asyncio.create_subprocess_exec(
            command[0], *command[1:], executable=program, env=dict(environment), cwd=cwd
        )
    except OSError as error:
        raise CannotRun(command[0], error, file=program) from None
    for number in waiting:
        pass_on(number)
    status = await client.wait()
    return status if status >= 0 else 128 - status


def _is_in_foreground() -> bool:
    """Tell whether a terminal sends its signals to us, and so to the client too."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
