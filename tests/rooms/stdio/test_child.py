"""Real child processes: how they start, why they do not, and how they are ended; and asking one for
its tools: ``--list-tools``, ``--dry-run`` and ``doctor`` in front of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGUSR1
from threading import Thread
from typing import Any

import pytest

from mcp_tool_filter.core.errors import ConnectFailed
from mcp_tool_filter.rooms.stdio.child import Child, end_child
from tests.cli.launched import run
from tests.stdio_client import upstream

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


def why_not(*words: str, **more: Any) -> str:
    with pytest.raises(ConnectFailed) as caught:
        Child(words, **more)
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


URL = "http://a:3000/mcp"


@pytest.mark.parametrize(("words", "why"), [
    (("no-such-command", "-y"), "Command not found: no-such-command"),
    ((URL,), f"Command not found: {URL}. A URL comes after --upstream"),
    (("",), "The command is empty"),
    (("/etc",), "/etc is a folder, not a program"),
])  # fmt: skip
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


@pytest.mark.parametrize(("text", "mode", "why"), [
    ("#!/bin/sh\n", 0o644, "Permission denied: FILE is not executable"),
    ("#!/no/such/python -u\n", 0o755, f"Cannot run FILE: {NO_PYTHON}"),
    ("echo hello\n", 0o755, "Exec format error: FILE. A script's first line must"),
])  # fmt: skip
def test_a_script_that_cannot_run_says_why(text: str, mode: int, why: str, tmp_path: Path) -> None:
    file = script(tmp_path, text, mode=mode)
    assert why_not(file).startswith(why.replace("FILE", file))


def test_a_missing_interpreter_in_the_path_or_the_folder_is_named(tmp_path: Path) -> None:
    script(tmp_path, "#!/no/such/python\n")
    assert why_not("server", env={"PATH": str(tmp_path)}) == f"Cannot run server: {NO_PYTHON}"
    assert NO_PYTHON in why_not("./server", cwd=str(tmp_path))


# Asking a command for its tools

SHELL, SLEEP = ("--", "sh", "-c"), ("--connection-timeout", "300", "--", "sleep", "60")


@pytest.mark.rest(but=2)
@pytest.mark.parametrize("flags", [(), ("--strict",), ("--modern",), ("--page", "1"), ("--crlf",)])
def test_the_tools_of_a_command_are_listed(flags: tuple[str, ...], tmp_path: Path) -> None:
    words = ("--list-tools", "--json", "--deny", "^delete_", "--")
    found = run(*words, *upstream(*flags, journal=tmp_path / "journal"), home=tmp_path)
    assert found.returncode == 0, found.stderr
    known = json.loads(found.stdout)
    exposed = {tool["name"]: tool["exposed"] for tool in known["tools"]}
    assert exposed == {"read_file": True, "write_file": True, "delete_file": False}
    assert known["transport"] == "stdio"
    assert json.loads((tmp_path / "journal").read_bytes().split(b"\n")[0])["method"] == "initialize"


@pytest.mark.rest(but=3)
@pytest.mark.parametrize(("words", "code", "said"), [
    (("--deny", "^delete_", "--", *upstream()), 0, "3 tools: 2 exposed, 1 denied"),
    (SLEEP, 1, "Does it speak MCP over stdio"),  # and no word about a firewall
    (("--", "no-such-command"), 1, "Command not found: no-such-command"),
    ((*SHELL, "exit 4"), 1, "The command exited with code 4"),
])  # fmt: skip
def test_the_doctor_looks_at_a_command(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    found = run("doctor", *words, home=tmp_path)
    assert (found.returncode, said in found.stdout) == (code, True), found.stdout
    assert "firewall" not in found.stdout


def test_waiting_for_a_silent_command_ends(tmp_path: Path) -> None:
    found = run("--dry-run", *SLEEP, home=tmp_path)
    said = "Error: Failed to connect to upstream MCP at sleep 60\nConnection timeout after 300ms\n"
    assert (found.returncode, found.stderr) == (1, said)


def test_what_a_server_writes_to_stderr_begins_with_its_name(tmp_path: Path) -> None:
    """Else it looks as if we had said it."""
    text = "printf 'first\\nlast' >&2; exit 3"
    found = run("doctor", *SHELL, text, home=tmp_path)
    assert (found.stderr, "exited with code 3" in found.stdout) == ("sh: first\nsh: last\n", True)
    file = tmp_path / "servers.toml"
    file.write_text(f"[servers.files]\ncommand = {json.dumps([*SHELL[1:], text])}\n")
    found = run("doctor", "--server", "files", "--config", str(file), home=tmp_path)
    assert found.stderr == "files: first\nfiles: last\n"


def test_text_between_a_commands_messages_is_shown(tmp_path: Path) -> None:
    """It may say why no tools come."""
    text = "echo Listening on port 8000; echo '{}'; exit 1"
    shown, invalid, *_ = run("--list-tools", *SHELL, text, home=tmp_path).stderr.splitlines()
    assert shown == "[not JSON, from the command] Listening on port 8000"
    assert invalid.startswith("Warning: The command sent an invalid message: ")


def test_waiting_ends_when_a_command_closes_its_output(tmp_path: Path) -> None:
    closes = (*SHELL, "exec >&-; read line; read line; sleep 600")
    found = run("--list-tools", "--connection-timeout", "600000", *closes, home=tmp_path)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == "The command has closed its output"
