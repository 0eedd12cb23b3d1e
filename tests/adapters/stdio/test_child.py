"""Real child processes: how they start, why they do not, and how they are ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGUSR1
from threading import Thread
from typing import Any

import pytest

from mcp_tool_filter.adapters.stdio.child import Child, end_child
from mcp_tool_filter.errors import ConnectFailed

PYTHON = sys.executable
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


@contextmanager
def child(*words: str, **more: Any) -> Iterator[Child]:
    started = Child(words, **more)
    try:
        yield started
    finally:
        end_child(started, eof=0, term=2)
        started.close_output()


def all_it_says(started: Child) -> bytes:
    return b"".join(iter(started.read, b""))


def why_not(*words: str, env: dict[str, str] | None = None, cwd: str | None = None) -> str:
    with pytest.raises(ConnectFailed) as caught:
        Child(words, env=env, cwd=cwd)
    return caught.value.why


def script(folder: Path, text: str, *, mode: int = 0o755) -> str:
    file = folder / "server"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_input_and_output_of_a_command_pass() -> None:
    with child(PYTHON, "-c", ECHO) as started:
        assert started.write(b"one\n")
        assert started.read() == b"one\n"
        started.close_stdin()
        assert not started.write(b"two\n")
        assert all_it_says(started) == b""
        assert started.wait() == 0
        assert started.has_left_nobody()


def test_writing_to_a_command_that_has_stopped_reading_returns_false() -> None:
    with child(PYTHON, "-c", "import os; os.close(0); print(flush=True)") as started:
        assert started.read() == b"\n"
        while started.write(b"x" * 65536):
            pass
        assert not started.write(b"x")


def test_input_that_is_closed_during_a_write_ends_with_that_write() -> None:
    """The command may have answered what was written before the writing thread goes on."""
    program = (
        "import signal, sys; signal.alarm(50); go_on = [signal.SIGUSR1];"
        "signal.pthread_sigmask(signal.SIG_BLOCK, go_on); print(flush=True);"
        "signal.sigwait(go_on); print(len(sys.stdin.read()))"
    )
    with child(PYTHON, "-c", program) as started:
        assert started.read() == b"\n"
        writing = Thread(target=started.write, args=[b"x" * 500_000])
        writing.start()
        while not started._closing.locked():
            pass
        started.close_stdin()
        started.send(SIGUSR1)
        assert all_it_says(started) == b"500000\n"
        writing.join()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("no-such-command", "-y"), "Command not found: no-such-command"),
        (
            ("http://a:3000/mcp",),
            "Command not found: http://a:3000/mcp. A URL comes after --upstream",
        ),
        (("",), "The command is empty"),
        (("/etc",), "/etc is a folder, not a program"),
    ],
)
def test_what_is_no_command_is_described(words: tuple[str, ...], why: str) -> None:
    assert why_not(*words) == why


def test_a_command_is_looked_up_in_its_own_path(tmp_path: Path) -> None:
    script(tmp_path, "#!/bin/sh\necho found\n")
    with child("server", env={"PATH": str(tmp_path)}) as started:
        assert all_it_says(started) == b"found\n"
    assert why_not("sh", env={"PATH": str(tmp_path)}) == "Command not found: sh"


def test_the_working_folder_must_exist(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert why_not(PYTHON, cwd=missing) == f"There is no folder {missing}"


NO_PYTHON = "there is no /no/such/python, which its first line names"


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("#!/bin/sh\n", 0o644, "Permission denied: FILE is not executable"),
        ("#!/no/such/python -u\n", 0o755, f"Cannot run FILE: {NO_PYTHON}"),
        ("echo hello\n", 0o755, "Exec format error: FILE. A script's first line must"),
    ],
)
def test_a_script_that_cannot_run_has_a_reason(
    text: str, mode: int, why: str, tmp_path: Path
) -> None:
    file = script(tmp_path, text, mode=mode)
    assert why_not(file).startswith(why.replace("FILE", file))


def test_a_missing_interpreter_of_a_program_in_the_path_or_the_folder_is_named(
    tmp_path: Path,
) -> None:
    script(tmp_path, "#!/no/such/python\n")
    said = f"Cannot run server: {NO_PYTHON}"
    assert why_not("server", env={"PATH": str(tmp_path)}) == said
    assert NO_PYTHON in why_not("./server", cwd=str(tmp_path))
