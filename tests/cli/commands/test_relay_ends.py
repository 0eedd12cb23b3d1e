"""How a session with a command ends: exit codes, crashes, signals, and clients that leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands.relaying import DENY, gone, pid_in
from tests.cli.launched import run, surroundings
from tests.make import asking, calling
from tests.raw_upstream import TIMEOUT
from tests.stdio_client import StdioClient, filtered, upstream

pytestmark = pytest.mark.rest


@pytest.fixture
def client(tmp_path: Path) -> Iterator[StdioClient]:
    with filtered(*DENY, "--", *upstream(), home=tmp_path) as started:
        yield started


@pytest.mark.parametrize("code", [0, 1, 42])
def test_the_commands_exit_code_is_ours(code: int, tmp_path: Path) -> None:
    with filtered("--", *upstream("--exit", str(code)), home=tmp_path) as client:
        client.asks("ping")
        assert client.leaves() == code


def test_every_waiting_request_gets_an_error_at_a_crash(client: StdioClient) -> None:
    client.say(asking("ping"), calling("crash", id='"c"'), asking("ping", id="3"), b"no message")
    assert client.ends() == 1
    heard = {json.dumps(json.loads(line)["id"]): json.loads(line) for line in client.raw}
    assert heard["1"]["result"] == {}
    for id in ('"c"', "3"):
        assert heard[id]["error"] == {"code": -32000, "message": "Upstream connection lost"}
    assert client.stderr() == (
        "Error: Lost connection to upstream MCP\n"
        "Shutting down proxy: the command exited with code 3\n"
    )


def test_a_call_that_waits_for_the_list_gets_an_error_at_a_signal(tmp_path: Path) -> None:
    command = ("sh", "-c", "read -r asked; echo asked >&2; exec sleep 60")  # it lists nothing
    with filtered("--read-only", "--", *command, home=tmp_path) as client:
        client.say(calling("read_file", id='"w"'))
        client.said_on_stderr("asked")
        client.process.terminate()
        assert client.hears()["error"] == {"code": -32000, "message": "Upstream connection lost"}
        assert client.ends() == 143


@pytest.mark.parametrize("code", [0, 7])
def test_a_command_that_ends_by_itself_is_lost_with_any_exit_code(
    client: StdioClient, code: int
) -> None:
    client.say(calling("crash", arguments=json.dumps({"code": code})))
    assert client.ends() == 1
    assert f"exited with code {code}" in client.stderr()


def test_a_command_that_is_killed_is_lost(client: StdioClient) -> None:
    client.say(calling("vanish"))
    assert client.ends() == 1
    assert "signal 9" in client.stderr()
    assert json.loads(client.raw[-1])["error"]["code"] == -32000


def test_a_command_that_closes_its_output_is_lost(client: StdioClient) -> None:
    client.say(calling("close"))
    assert client.ends() == 1
    assert "closed its output" in client.stderr()


def test_a_crash_is_noticed_although_a_grandchild_lives(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with filtered("--", *upstream("--grandchild", str(file)), home=tmp_path) as client:
        client.say(calling("crash"))
        assert client.ends() == 1
        assert gone(pid_in(file))


@pytest.mark.parametrize("folder", [None, "/no/such/folder"])
def test_a_command_that_cannot_start_stops_the_start(folder: str | None, tmp_path: Path) -> None:
    where = ("--cwd", folder) if folder else ()
    found = run(*where, "--", "no-such-command", "a b", home=tmp_path)
    assert found.returncode == 1
    what, why = found.stderr.splitlines()
    assert what == "Error: Failed to connect to upstream MCP at no-such-command 'a b'"
    assert why == (
        f"There is no folder {folder}" if folder else "Command not found: no-such-command"
    )


def test_a_file_that_cannot_be_run_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    found = run("--", str(tmp_path / "text"), home=tmp_path)
    assert found.returncode == 1
    assert "Permission denied" in found.stderr


def test_a_wrong_pattern_starts_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    found = run("--deny", "(a+)+", "--", "touch", str(made), home=tmp_path)
    assert found.returncode == 1
    assert "Unsafe regex pattern" in found.stderr
    assert not made.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_the_commands_exit_code_is_ours(
    number: signal.Signals, tmp_path: Path
) -> None:
    flags = upstream("--exit-on-term", "5", "--exit-on-int", "6")
    with filtered("--", *flags, home=tmp_path) as client:
        client.asks("ping")
        client.process.send_signal(number)
        assert client.ends() == {signal.SIGTERM: 5, signal.SIGINT: 6}[number]
        assert "Lost" not in client.stderr()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_command_that_waits_for_its_next_line_ends_after_ctrl_c(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Python servers do: SIGTERM ended them, 5 seconds later."""
    script = "trap '' INT HUP; echo '{}' >&2; cat >/dev/null; exit 7"
    with filtered("--", "sh", "-c", script, home=tmp_path) as client:
        client.said_on_stderr("{}")
        client.process.send_signal(number)
        assert client.ends() == 7


def test_a_command_that_a_signal_ended_exits_as_in_a_shell(client: StdioClient) -> None:
    client.asks("ping")
    client.process.terminate()
    assert client.ends() == 128 + signal.SIGTERM


def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    flags = upstream("--ignore-term", "--ignore-eof", "--grandchild", str(file))
    with filtered("--", *flags, home=tmp_path) as client:
        client.asks("ping")
        client.process.terminate()
        assert client.ends() == 128 + signal.SIGKILL
        assert gone(pid_in(file))
        assert "Warning: The command did not end, so it was killed" in client.stderr()


def test_a_command_that_ignores_the_end_of_its_input_is_terminated(tmp_path: Path) -> None:
    """5 seconds later with SIGTERM; its grandchildren too."""
    file = tmp_path / "pid"
    flags = upstream("--ignore-eof", "--exit-on-term", "9", "--grandchild", str(file))
    with filtered("--", *flags, home=tmp_path) as client:
        client.asks("ping")
        assert client.leaves() == 9
        assert gone(pid_in(file))


def test_a_grandchild_is_ended_after_the_command(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    flags = upstream("--grandchild", str(file), "--ignore-term")
    with filtered("--", *flags, home=tmp_path) as client:
        client.asks("ping")
        assert client.leaves() == 0
        assert gone(pid_in(file))


def test_a_client_that_stops_listening_ends_the_session(
    client: StdioClient, tmp_path: Path
) -> None:
    client.opens()
    read, write = os.pipe()
    command = [sys.executable, "-m", "mcp_tool_filter", "--", *upstream()]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=write, env=surroundings(tmp_path)
    )
    os.close(write)
    os.close(read)
    assert process.stdin
    process.stdin.write(asking("ping") + b"\n")
    process.stdin.flush()
    assert process.wait(timeout=TIMEOUT) == 0
    process.stdin.close()


def test_a_client_that_leaves_with_unread_input_ends_the_session(tmp_path: Path) -> None:
    """Its last lines wait behind bytes that the command does not read."""
    file = tmp_path / "pid"
    program = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with filtered(*DENY, "--", sys.executable, "-c", program, home=tmp_path) as client:
        command = pid_in(file)
        large = calling("read_file").replace(
            b'"params":{', b'"params":{"x":"' + b"a" * 3_000_000 + b'",'
        )
        sender = threading.Thread(target=_say_and_leave, args=(client, large))
        sender.start()
        assert client.process.wait(timeout=TIMEOUT) is not None
        sender.join(10)
        assert gone(command)


def _say_and_leave(client: StdioClient, line: bytes) -> None:
    assert client.process.stdin
    try:
        client.process.stdin.write(line + b"\n")
        client.process.stdin.close()
    except OSError:
        pass
