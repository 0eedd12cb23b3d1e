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

from tests.cli.launched import surroundings
from tests.make import asking, calling
from tests.raw_upstream import TIMEOUT
from tests.rooms.stdio.relaying import DENY, gone, pid_in
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


@pytest.mark.parametrize(("call", "said"), [
    (calling("crash", arguments='{"code":0}'), "exited with code 0"),
    (calling("crash", arguments='{"code":7}'), "exited with code 7"),
    (calling("vanish"), "signal 9"), (calling("close"), "closed its output"),
])  # fmt: skip
def test_a_command_that_ends_in_any_way_is_lost(
    call: bytes, said: str, client: StdioClient
) -> None:
    client.say(call)
    assert client.ends() == 1
    assert said in client.stderr()
    assert json.loads(client.raw[-1])["error"]["code"] == -32000


def test_a_crash_is_noticed_although_a_grandchild_lives(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with filtered("--", *upstream("--grandchild", str(file)), home=tmp_path) as client:
        client.say(calling("crash"))
        assert client.ends() == 1
        assert gone(pid_in(file))


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


def test_a_client_that_stops_listening_ends_the_session(tmp_path: Path) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-m", "mcp_tool_filter", "--", *upstream()]
    around = surroundings(tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=write, env=around) as process:
        os.close(write)
        os.close(read)
        assert process.stdin
        process.stdin.write(asking("ping") + b"\n")
        process.stdin.flush()
        assert process.wait(timeout=TIMEOUT) == 0


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
