"""``mcp-tool-filter -- CMD`` in front of real child processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.cli.launched import run, surroundings
from tests.make import asking, calling
from tests.stdio_client import StdioClient, filtered, is_alive, upstream

DENY = ("--deny", "^delete_")


def names_in(answer: dict[str, dict[str, list[dict[str, str]]]]) -> list[str]:
    return [tool["name"] for tool in answer["result"]["tools"]]


def text_in(answer: dict[str, dict[str, list[dict[str, str]]]]) -> str:
    return answer["result"]["content"][0]["text"]


def pid_in(file: Path) -> int:
    end = time.monotonic() + 10
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return int(file.read_text())


def gone(pid: int) -> bool:
    """Wait until a process has ended."""
    end = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_alive(pid)


def test_a_session_in_front_of_a_command(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with filtered(*DENY, "--", *upstream(journal=journal), home=tmp_path) as client:
        client.opens()
        assert names_in(client.asks("tools/list", id="2")) == ["read_file", "write_file"]
        assert client.calls("delete_file", id='"x"') == {
            "jsonrpc": "2.0",
            "id": "x",
            "error": {"code": -32601, "message": "Tool not found: delete_file"},
        }
        assert text_in(client.calls("read_file", id="4")) == "read_file"
        assert client.leaves() == 0
    assert b"delete_file" not in journal.read_bytes()


def test_the_upstream_sees_what_the_client_says_and_nothing_else(tmp_path: Path) -> None:
    """No foreign request, no foreign id, and each line as it was written."""
    journal = tmp_path / "journal"
    said = [
        asking("initialize", id='"\\u0041"'),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b' { "jsonrpc":"2.0", "id":1.0e0 ,"method":"tools/list" } ',
        b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"read_file",'
        b'"arguments":{"a":"\xe2\x80\xa8\\ud83d","b":1.000,"a":0}}}',
        b'{"jsonrpc":"2.0","id":9,"method":"vendor.acme/x"}',
    ]
    with filtered(*DENY, "--", *upstream(journal=journal), home=tmp_path) as client:
        client.say(*said)
        heard = [client.hears_line() for _ in range(4)]
        assert client.leaves() == 0
    assert journal.read_bytes() == b"".join(line + b"\n" for line in said)
    assert json.loads(heard[0])["id"] == "A"


def test_line_ends_are_accepted_and_written_as_one_newline(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    flags = upstream("--crlf", journal=journal)
    with filtered("--", *flags, home=tmp_path) as client:
        client.say_bytes(b"\r\n\n" + asking("ping") + b"\r\n  \n" + asking("ping", id="2"))
        assert client.leaves() == 0
        assert all(line.endswith(b"}\n") for line in client.raw)
        assert len(client.raw) == 2
    assert journal.read_bytes() == asking("ping") + b"\n" + asking("ping", id="2") + b"\n"


def test_answers_come_after_the_client_has_said_its_last_word(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
        client.say(*(calling("sleep", id=str(n), arguments='{"seconds":0.02}') for n in range(20)))
        assert client.leaves() == 0
        assert [json.loads(line)["id"] for line in client.raw] == list(range(20))


def test_a_command_that_starts_slowly_gets_what_was_said_meanwhile(tmp_path: Path) -> None:
    with filtered(*DENY, "--", *upstream("--slow", "0.3", "--strict"), home=tmp_path) as client:
        client.opens()
        assert len(names_in(client.asks("tools/list", id="2"))) == 2


def test_a_command_of_the_stateless_revision(tmp_path: Path) -> None:
    with filtered(*DENY, "--", *upstream("--modern"), home=tmp_path) as client:
        assert client.asks("server/discover")["result"]["supportedVersions"] == ["2026-07-28"]
        answer = client.asks("tools/list", id="2")
        assert answer["result"]["ttlMs"] == 0
        assert names_in(answer) == ["read_file", "write_file"]
        assert "modern 2, stdio, 2026-07-28" in client.said_on_stderr("Saved:")


def test_the_report_comes_with_the_first_whole_list(tmp_path: Path) -> None:
    with filtered(*DENY, "--deny", "^nothing", "--", *upstream("--page", "2"), home=tmp_path) as it:
        it.opens()
        it.asks("tools/list", id="2")
        it.asks("tools/list", id="3", params='{"cursor":"2"}')
        said = it.said_on_stderr("Warning:")
    assert "Tools: 3, of which 1 denied, 2 exposed" in said
    assert '"^delete_": delete_file' in said
    assert 'the pattern "^nothing" matches no tool' in said


def test_nothing_is_reported_if_the_user_wants_quiet(tmp_path: Path) -> None:
    with filtered("-q", *DENY, "--", *upstream(), home=tmp_path) as client:
        client.asks("tools/list")
        client.leaves()
        assert client.stderr() == ""


def test_a_bare_carriage_return_hides_no_call(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with filtered(*DENY, "--", *upstream(journal=journal), home=tmp_path) as client:
        client.say(asking("ping") + b"\r" + calling("delete_file", id="2"))
        assert client.hears()["error"]["code"] == -32600
        assert client.asks("ping", id="3")["id"] == 3
    assert b"delete_file" not in journal.read_bytes()


def test_a_relay_that_denies_nothing_says_so(tmp_path: Path) -> None:
    with filtered("-q", "--", *upstream(), home=tmp_path) as client:
        client.said_on_stderr("Warning: nothing is denied")


def test_a_line_that_is_not_json_is_answered(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
        client.say(b"hello")
        assert client.hears() == {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32600, "message": "Invalid Request"},
        }
        assert client.asks("ping")["result"] == {}


def test_what_a_command_prints_between_messages_goes_to_stderr(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
        assert text_in(client.calls("noise")) == "noise"
        said = client.said_on_stderr("not { JSON")
        assert "[not JSON, from the command] Loading the model ...\n" in said


def test_a_terminal_is_safe_from_what_a_command_prints(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
        client.calls("say", raw="\x1b[31mred\x07")
        assert "\\x1b[31mred\\x07" in client.said_on_stderr("red")


def test_the_stderr_of_the_command_is_ours(tmp_path: Path) -> None:
    with filtered("--", *upstream("--stderr", "ready to serve"), home=tmp_path) as client:
        client.asks("ping")
        assert "ready to serve\n" in client.said_on_stderr("ready")


def test_a_question_of_the_upstream_is_answered_by_the_client(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
        client.say(calling("ask"))
        assert client.hears()["method"] == "roots/list"
        answer = b'{"jsonrpc":"2.0","id":"q1","result":{"roots":[]}}'
        client.say(answer)
        assert text_in(client.hears()) == answer.decode() + "\n"


# Lines that are too long


def test_a_request_that_is_too_large_gets_an_error_and_the_session_goes_on(tmp_path: Path) -> None:
    with filtered("--message-limit", "1MB", "--", *upstream(), home=tmp_path) as client:
        for size in (1_100_000, 2_200_000):
            client.say(calling("read_file", id="7", arguments=json.dumps({"x": "y" * size})))
            refused = client.hears()
            assert (refused["id"], refused["error"]["code"]) == (7, -32600)
        assert client.asks("ping", id="8")["id"] == 8


@pytest.mark.parametrize("size", [1_100_000, 2_200_000])
def test_an_answer_that_is_too_large_is_replaced_by_an_error(size: int, tmp_path: Path) -> None:
    with filtered("--message-limit", "1MB", "--", *upstream(), home=tmp_path) as client:
        refused = client.calls("big", id="7", bytes=size)
        assert (refused["id"], refused["error"]["code"]) == (7, -32603)
        assert client.asks("ping", id="8")["id"] == 8
        client.said_on_stderr("Warning: The upstream sent an invalid message: a ")


def test_a_large_answer_passes(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
        assert len(text_in(client.calls("big", bytes=9_000_000))) == 9_000_000


# The end


@pytest.mark.parametrize("code", [0, 1, 42])
def test_the_exit_code_of_the_command_is_ours(code: int, tmp_path: Path) -> None:
    with filtered("--", *upstream("--exit", str(code)), home=tmp_path) as client:
        client.asks("ping")
        assert client.leaves() == code


def test_a_crash_is_told_to_everybody_who_waits(tmp_path: Path) -> None:
    with filtered(*DENY, "--", *upstream(), home=tmp_path) as client:
        client.say(
            asking("ping"), calling("crash", id='"c"'), asking("ping", id="3"), b"no message"
        )
        assert client.ends() == 1
        heard = {json.dumps(json.loads(line)["id"]): json.loads(line) for line in client.raw}
        assert heard["1"]["result"] == {}
        for id in ('"c"', "3"):
            assert heard[id]["error"] == {"code": -32000, "message": "Upstream connection lost"}
        assert client.stderr() == (
            "Error: Lost connection to upstream MCP\n"
            "Shutting down proxy: the command exited with code 3\n"
        )


@pytest.mark.parametrize("code", [0, 7])
def test_a_command_that_ends_by_itself_is_lost_whatever_its_code(code: int, tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
        client.say(calling("crash", arguments=json.dumps({"code": code})))
        assert client.ends() == 1
        assert f"exited with code {code}" in client.stderr()


def test_a_command_that_is_killed_is_lost(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
        client.say(calling("vanish"))
        assert client.ends() == 1
        assert "signal 9" in client.stderr()
        assert json.loads(client.raw[-1])["error"]["code"] == -32000


def test_a_command_that_closes_its_output_is_lost(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
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
def test_a_command_that_cannot_start(folder: str | None, tmp_path: Path) -> None:
    where = ("--cwd", folder) if folder else ()
    found = run(*where, "--", "no-such-command", "a b", home=tmp_path)
    assert found.returncode == 1
    what, why = found.stderr.splitlines()
    assert what == "Error: Failed to connect to upstream MCP at no-such-command 'a b'"
    assert why == (
        f"There is no folder {folder}" if folder else "Command not found: no-such-command"
    )


def test_a_file_that_cannot_be_run(tmp_path: Path) -> None:
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
def test_signals_are_passed_on_and_the_exit_code_is_the_commands(
    number: signal.Signals, tmp_path: Path
) -> None:
    flags = upstream("--exit-on-term", "5", "--exit-on-int", "6")
    with filtered("--", *flags, home=tmp_path) as client:
        client.asks("ping")
        client.process.send_signal(number)
        assert client.ends() == {signal.SIGTERM: 5, signal.SIGINT: 6}[number]
        assert "Lost" not in client.stderr()


def test_a_command_that_a_signal_ended_exits_as_in_a_shell(tmp_path: Path) -> None:
    with filtered("--", *upstream(), home=tmp_path) as client:
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


def test_a_command_that_ignores_the_end_of_its_input_is_ended(tmp_path: Path) -> None:
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
    with filtered("--", *upstream(), home=tmp_path) as client:
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
        assert process.wait(timeout=20) == 0
        process.stdin.close()


# Settings


def test_the_words_of_upstream_cmd_are_split_but_no_shell_runs(tmp_path: Path) -> None:
    python, script = upstream()
    words = f"'{python}' {script} --tools 'a b,$HOME' --exit 0"
    with filtered("--upstream-cmd", words, "--stdio", home=tmp_path) as client:
        assert names_in(client.asks("tools/list")) == ["a b", "$HOME"]


def test_variables_and_folder_reach_the_command_and_no_argv(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    words = ("--env", "SECRET=a=$b", "--env", "EMPTY=", "--cwd", str(folder))
    with filtered("-vv", *words, "--", *upstream(), home=tmp_path) as client:
        assert text_in(client.calls("env", name="SECRET")) == "a=$b"
        assert text_in(client.calls("env", name="EMPTY")) == ""
        assert text_in(client.calls("cwd")) == str(folder)
        assert "a=$b" not in text_in(client.calls("argv"))
        client.asks("tools/list", id="8")
        assert "a=$b" not in client.said_on_stderr("Saved")


def test_neither_mitmproxy_nor_asyncio_is_imported(tmp_path: Path) -> None:
    code = (
        "import atexit, os, sys\n"
        "leave = os._exit\n"
        "def tell(code):\n"
        "    print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
        "    sys.stderr.flush()\n"
        "    leave(code)\n"
        "os._exit = tell\n"
        "from mcp_tool_filter.cli.launcher import main\n"
        f"main(['--deny', '^delete_', '--', *{upstream()!r}])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=asking("tools/list") + b"\n",
        capture_output=True,
        check=False,
        env=surroundings(tmp_path),
        timeout=60,
    )
    assert found.returncode == 0
    modules = found.stderr.decode().splitlines()[-1]
    assert "'mcp_tool_filter'" in modules
    assert all(f"'{name}'" not in modules for name in ("mitmproxy", "asyncio", "h11", "ssl"))


# Backpressure


def resident(pid: int) -> int:
    """Return how many bytes a process holds in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_stops_reading_slows_the_command(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys, time
read, write = os.pipe()
"""
    del code
    read, write = os.pipe()
    command = [sys.executable, "-m", "mcp_tool_filter", "--", *upstream()]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=write, env=surroundings(tmp_path)
    )
    os.close(write)
    assert process.stdin
    process.stdin.write(asking("ping") + b"\n")
    process.stdin.flush()
    os.read(read, 1000)
    before = resident(process.pid)
    process.stdin.write(calling("flood", arguments='{"messages":40000}') + b"\n")
    process.stdin.flush()
    time.sleep(1.0)
    assert resident(process.pid) - before < 8_000_000
    process.stdin.close()
    heard = b""
    count = 0
    while chunk := os.read(read, 1 << 20):
        count += chunk.count(b"\n")
        heard = (heard + chunk)[-1000:]
    os.close(read)
    assert count == 40_001
    assert b'"flood"' in heard
    assert process.wait(timeout=20) == 0


def test_a_command_that_never_reads_slows_the_client(tmp_path: Path) -> None:
    with filtered("--", *upstream("--deaf"), home=tmp_path) as client:
        client.say(asking("ping"))
        time.sleep(0.3)
        before = resident(client.process.pid)
        written = [0]
        thread = threading.Thread(target=write_much, args=(client, written), daemon=True)
        thread.start()
        time.sleep(0.7)
        assert written[0] < 2_000_000
        assert resident(client.process.pid) - before < 8_000_000
        client.process.terminate()
        assert client.ends() == 128 + signal.SIGTERM
        thread.join()


def write_much(client: StdioClient, written: list[int]) -> None:
    line = calling("read_file", arguments=json.dumps({"x": "y" * 10_000}))
    try:
        for _ in range(5_000):
            client.say(line)
            written[0] += len(line)
    except OSError:
        pass


def test_nothing_deadlocks_when_both_sides_write_much(tmp_path: Path) -> None:
    with filtered(*DENY, "--", *upstream(), home=tmp_path) as client:
        count = 3000
        for number in range(count):
            name = "delete_file" if number % 3 == 0 else "read_file"
            arguments = json.dumps({"x": "y" * 1000})
            client.say(calling(name, id=str(number), arguments=arguments))
        assert client.leaves() == 0
        answers = [json.loads(line) for line in client.raw]
        assert sorted(answer["id"] for answer in answers) == list(range(count))
        assert sum("error" in answer for answer in answers) == count // 3
        in_order = [answer["id"] for answer in answers if "result" in answer]
        assert in_order == sorted(in_order)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--deny", "^no_such"], 'Error: The pattern "^no_such" matches no tool\n'),
        (["--deny-glob", "delete_*"], ""),
    ],
)
def test_with_strict_a_pattern_that_matches_nothing_ends_it_before_any_list(
    words: list[str], said: str, tmp_path: Path
) -> None:
    with filtered("--strict", *words, "--", *upstream(), home=tmp_path) as client:
        client.opens()
        client.say(asking("tools/list", id="2"))
        heard = client.hears_line()
        assert bool(heard) == (not said)
        if said:
            assert client.ends() == 1
            assert said in client.stderr()


def test_strict_wants_a_pattern_before_the_command_starts(tmp_path: Path) -> None:
    ended = run("--strict", "--", *upstream(), home=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("Error: Nothing is denied: there is no deny or allow pattern\n")


def test_a_client_that_leaves_more_than_the_command_reads_ends_the_session(tmp_path: Path) -> None:
    """The end of what it said stands behind bytes that nobody takes."""
    file = tmp_path / "pid"
    program = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with filtered(*DENY, "--", sys.executable, "-c", program, home=tmp_path) as client:
        command = pid_in(file)
        large = calling("read_file").replace(
            b'"params":{', b'"params":{"x":"' + b"a" * 3_000_000 + b'",'
        )
        sender = threading.Thread(target=_say_and_leave, args=(client, large))
        sender.start()
        assert client.process.wait(timeout=30) is not None
        sender.join(10)
        assert gone(command)


def _say_and_leave(client: StdioClient, line: bytes) -> None:
    assert client.process.stdin
    try:
        client.process.stdin.write(line + b"\n")
        client.process.stdin.close()
    except OSError:
        pass
