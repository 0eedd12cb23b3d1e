"""``mcp-tool-filter -- CMD`` in front of real child processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_tool_filter.core.policy.verdict import Forward
from mcp_tool_filter.rooms.recordings.flow_dump import read_flows
from mcp_tool_filter.rooms.stdio.command import open_recorder, say_beside_client
from tests.cli.launched import Typed, run, surroundings
from tests.make import answering, asking, calling
from tests.raw_upstream import TIMEOUT
from tests.rooms.stdio.relaying import DENY, gone, names_in, pid_in, text_in
from tests.stdio_client import StdioClient, filtered, upstream


@pytest.fixture
def client(tmp_path: Path) -> Iterator[StdioClient]:
    with filtered(*DENY, "--", *upstream(), home=tmp_path) as started:
        yield started


def test_a_session_in_front_of_a_command(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with filtered(*DENY, "--", *upstream(journal=journal), home=tmp_path) as client:
        client.opens()
        assert names_in(client.asks("tools/list", id="2")) == ["read_file", "write_file"]
        error = {"code": -32601, "message": "Tool not found: delete_file"}
        refused = client.calls("delete_file", id='"x"')
        assert refused == {"jsonrpc": "2.0", "id": "x", "error": error}
        assert text_in(client.calls("read_file", id="4")) == "read_file"
        assert client.leaves() == 0
    assert b"delete_file" not in journal.read_bytes()


@pytest.mark.parametrize(("flags", "lines"), [((), 1), (("--quiet",), 0)])
def test_the_start_is_reported_on_one_line(
    flags: tuple[str, ...], lines: int, tmp_path: Path
) -> None:
    """Clients show stderr as errors."""
    with filtered(*flags, *DENY, "--", *upstream(), home=tmp_path) as client:
        client.opens()
        client.asks("tools/list", id="2")
        assert client.leaves() == 0
        said = client.stderr().splitlines()
    assert ["Tools: 3, of which 1 denied, 2 exposed" in line for line in said] == [True] * lines


def test_the_command_gets_only_the_clients_lines(tmp_path: Path) -> None:
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


def test_answers_still_arrive_after_the_client_has_closed_its_side(client: StdioClient) -> None:
    client.say(*(calling("sleep", id=str(n), arguments='{"seconds":0.02}') for n in range(20)))
    assert client.leaves() == 0
    assert [json.loads(line)["id"] for line in client.raw] == list(range(20))


def test_a_command_that_starts_slowly_gets_all_earlier_lines(tmp_path: Path) -> None:
    with filtered(*DENY, "--", *upstream("--slow", "0.3", "--strict"), home=tmp_path) as client:
        client.opens()
        assert len(names_in(client.asks("tools/list", id="2"))) == 2


def test_a_command_of_the_stateless_revision_works(tmp_path: Path) -> None:
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


def test_a_relay_without_patterns_warns(tmp_path: Path) -> None:
    with filtered("-q", "--", *upstream(), home=tmp_path) as client:
        client.said_on_stderr("Warning: nothing is denied")


def test_a_line_that_is_not_json_gets_an_error(client: StdioClient) -> None:
    client.say(b"hello")
    error = {"code": -32600, "message": "Invalid Request"}
    assert client.hears() == {"jsonrpc": "2.0", "id": None, "error": error}
    assert client.asks("ping")["result"] == {}


def test_the_commands_stderr_is_passed_on(tmp_path: Path) -> None:
    with filtered("--", *upstream("--stderr", "ready to serve"), home=tmp_path) as client:
        client.asks("ping")
        assert "ready to serve\n" in client.said_on_stderr("ready")


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


def test_upstream_cmd_is_split_into_words_without_a_shell(tmp_path: Path) -> None:
    python, script = upstream()
    words = f"'{python}' {script} --tools 'a b,$HOME' --exit 0"
    with filtered("--upstream-cmd", words, "--stdio", home=tmp_path) as client:
        assert names_in(client.asks("tools/list")) == ["a b", "$HOME"]


def test_variables_and_folder_reach_the_command_and_stay_out_of_argv(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("words", "said"), [
    (["--deny", "^no_such"], 'Error: The pattern "^no_such" matches no tool\n'),
    (["--deny-glob", "delete_*"], ""),
])  # fmt: skip
def test_strict_ends_the_session_before_a_list_if_a_pattern_matches_nothing(
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


SECRETS = ["p4ssw0rd", "tok-s3cret", "x-s3cret", "qu3ry", "pl4in"]
WITH_SECRETS = [
    "--connectionString", "mongodb://admin:p4ssw0rd@db.example/x", "--access-token", "tok-s3cret",
    "--password=x-s3cret", "https://mcp.example/mcp?token=qu3ry", "-H", "X-Api-Key: pl4in",
]  # fmt: skip


def test_no_secret_of_a_command_is_printed(tmp_path: Path) -> None:
    """Clients keep our stderr in log files."""
    command = ["sh", "-c", shlex.join(upstream()), "sh", *WITH_SECRETS]
    with filtered(*DENY, "--", *command, home=tmp_path) as client:
        client.opens()
        client.asks("tools/list", id="2")
        assert client.leaves() == 0
        said = [client.stderr()]
    broken = ["/no/such/program", *WITH_SECRETS]
    for words in (["--list-tools=json"], ["--dry-run"], ["doctor"]):
        for started in (command, broken):
            done = run(*words, "--", *started, home=tmp_path)
            said += [done.stdout, done.stderr]
    text = "\n".join(said)
    assert "Failed to connect to upstream MCP at /no/such/program" in text
    assert "--connectionString *** --access-token *** --password=***" in text
    assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.parametrize(("line", "is_answer"), [
    ('{"id":%s,"result":{}}', True), ('{"id":%s,"result":{},"level":"info"}', True),
    ('{"id":%s,"error":"no"}', True), ('[{"id":%s,"result":{}}]', True),
    ('{"jsonrpc":"1.0","id":%s,"result":{}}', True),
    ('{"jsonrpc":"2.0","id":%s,"result":{"x":NaN}}', True),
    ('{"jsonrpc":"2.0","id":%s,"result":{}', True), ('{"jsonrpc":"2.0","result":{}}', True),
    ('{"level":"info","message":{"jsonrpc":"2.0","id":%s,"method":"tools/call"}}', False),
    ('{"sent":[{"jsonrpc":"2.0","id":%s,"result":{}}]}', False),
    ('{"level":"info","id":%s,"message":"{\\"jsonrpc\\":\\"2.0\\"}"}', False),
    ('DEBUG sent {"jsonrpc":"2.0","id":%s,"result":{}}', False),
])  # fmt: skip
def test_a_broken_answer_fails_its_request_and_a_log_line_fails_none(
    line: str, is_answer: bool, tmp_path: Path
) -> None:
    with filtered(*DENY, "--", *upstream("--tools", "say"), home=tmp_path) as client:
        client.opens()
        heard = client.calls("say", raw=line.replace("%s", "7"), id="7")
        if is_answer:
            said = "The server sent an invalid response"
            assert heard["error"] == {"code": -32603, "message": said}
        else:
            assert text_in(heard) == "say"
        assert heard["id"] == 7


@pytest.mark.parametrize("size", [11_000_000, 21_000_000])
@pytest.mark.parametrize("head", [
    '{"jsonrpc":"2.0","method":"notifications/message","params":{"id":7,"result":{},"data":"',
    '{"jsonrpc":"2.0","params":{"level":"info","data":"', '{"time":1,"message":"',
])  # fmt: skip
def test_a_notification_that_is_too_large_does_not_fail_the_answer_behind_it(
    head: str, size: int, tmp_path: Path
) -> None:
    with filtered(*DENY, "--", *upstream("--tools", "fill"), home=tmp_path) as client:
        client.opens()
        assert text_in(client.calls("fill", id="7", head=head, bytes=size)) == "fill"


def test_a_full_disk_ends_the_recording_and_not_the_session(tmp_path: Path) -> None:
    words = (*DENY, "--record", "/dev/full", "--", *upstream())
    with filtered(*words, home=tmp_path) as client:
        client.opens()
        assert text_in(client.calls("read_file", id="2")) == "read_file"
        client.calls("delete_file", id="3")
        assert client.leaves() == 0
        said = client.stderr()
        assert said.count("The recording /dev/full ends here: No space left on device") == 1


@pytest.mark.parametrize("stderr", ["closed", "unread"])
def test_nobody_needs_to_read_our_stderr(stderr: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    while stderr == "unread":
        os.set_blocking(writer, False)
        try:
            os.write(writer, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(writer, True)
            break
    ran = [sys.executable, "-m", "mcp_tool_filter", "-vv", *DENY, "--", *upstream()]
    recording = tmp_path / "recording"
    words = ["sh", "-c", 'exec "$@" 2>&-', "sh", *ran[:3], "--record", str(recording), *ran[3:]]
    said = [asking("tools/list", id="0")]
    said += [calling("delete_file", id=str(n)) for n in range(1, 300)]
    process = subprocess.run(
        words if stderr == "closed" else ran, input=b"".join(line + b"\n" for line in said),
        stdout=subprocess.PIPE, stderr=writer, env=surroundings(tmp_path), check=True, timeout=60,
    )  # fmt: skip
    heard = [json.loads(line)["id"] for line in process.stdout.splitlines()]
    assert sorted(heard) == list(range(300))
    if stderr == "closed":  # what is meant for people was not written into it
        assert b"Warning" not in recording.read_bytes()
    os.close(reader)
    os.close(writer)


def test_inherited_descriptors_may_be_non_blocking(tmp_path: Path) -> None:
    (stdin, to_us), (from_us, stdout) = os.pipe(), os.pipe()
    os.set_blocking(stdin, False)
    os.set_blocking(stdout, False)
    command = [sys.executable, "-m", "mcp_tool_filter", *DENY, "--", *upstream()]
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, env=surroundings(tmp_path))
    os.close(stdin)
    with os.fdopen(to_us, "wb", buffering=0) as says, os.fdopen(from_us, "rb") as hears:
        for size in (1, 3_000_000):  # each time it waits for us first
            says.write(calling("big", arguments=f'{{"bytes":{size}}}') + b"\n")
            time.sleep(0.3)
            assert len(json.loads(hears.readline())["result"]["content"][0]["text"]) == size
            assert not os.get_blocking(stdout)  # other processes may rely on it
        says.close()
        assert process.wait(timeout=TIMEOUT) == 0
    os.close(stdout)


def test_strict_leaves_no_command_running(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = upstream("--pid", str(pid), "--ignore-eof", "--ignore-term")
    with filtered("--strict", "--deny", "^no_such", "--", *command, home=tmp_path) as client:
        client.opens()
        client.say(asking("tools/list", id="2"))
        assert client.ends() == 1
        assert gone(pid_in(pid))


def resident(pid: int) -> int:
    """Return how many bytes a process holds in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_stops_reading_slows_the_command(tmp_path: Path) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-m", "mcp_tool_filter", "--", *upstream()]
    around = surroundings(tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=write, env=around) as process:
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
        last, count = b"", 0
        while count < 40_001 and (chunk := os.read(read, 1 << 20)):
            count += chunk.count(b"\n")
            last = (last + chunk)[-1000:]
        process.stdin.close()  # not before: the command would have 5 s for the rest
        assert b'"flood"' in last
        assert process.wait(timeout=TIMEOUT) == 0
    os.close(read)


def test_a_command_that_never_reads_slows_the_client(tmp_path: Path) -> None:
    with filtered(*DENY, "--", *upstream("--deaf"), home=tmp_path) as client:
        client.say(calling("delete_file"))
        assert "error" in client.hears()  # the filter answers: it has started
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
        answers = [client.hears() for _ in range(count)]
        assert client.leaves() == 0
        assert sorted(answer["id"] for answer in answers) == list(range(count))
        assert sum("error" in answer for answer in answers) == count // 3
        in_order = [answer["id"] for answer in answers if "result" in answer]
        assert in_order == sorted(in_order)


def session(home: Path, *flags: str) -> str:
    """Talk to a command, one message after the other; return what stderr got."""
    with filtered(*DENY, *flags, "--", *upstream(), home=home) as client:
        client.opens()
        client.asks("tools/list", id="2")
        client.calls("read_file", id="3", a=1)
        client.calls("delete_file", id="4")
        assert client.leaves() == 0
    return client.stderr()


def test_the_audit_log_has_a_line_for_what_matters(tmp_path: Path, typed: Typed) -> None:
    file = tmp_path / "audit.jsonl"
    session(tmp_path, "--audit-log", str(file))
    entries = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [(one["method"], one.get("tool"), one["verdict"]) for one in entries] == [
        ("tools/list", None, "forwarded"),
        ("tools/call", "read_file", "forwarded"),
        ("tools/call", "delete_file", "refused"),
    ]
    assert {one["transport"] for one in entries} == {"stdio"}
    assert entries[0]["answer_why"] == "hidden"
    assert entries[1]["answered"]
    typed("audit", "verify", file)


def test_a_rules_log_line_is_audited_over_stdio(tmp_path: Path) -> None:
    file, rules = tmp_path / "audit.jsonl", tmp_path / "rules.yaml"
    rules.write_text(
        "interceptor: {rules: [{id: tell, conditions: [tool_equals: read_file],"
        ' actions: [log: {message: "a is ${params.arguments.a}"}]}]}'
    )
    session(tmp_path, "--audit-log", str(file), "--rules", str(rules))
    entries = [json.loads(line) for line in file.read_bytes().splitlines()]
    (told,) = [one for one in entries if "event" in one]
    assert (told["event"], told["rule"], told["message"]) == ("rule", "tell", "a is 1")
    assert len(entries) == 4


@pytest.mark.parametrize("is_shown", [True, False])
def test_activity_lines_are_shown_only_on_request(is_shown: bool, tmp_path: Path) -> None:
    """Clients show stderr to their users."""
    stderr = session(tmp_path, *(["-v"] if is_shown else []))
    assert ("tools/call read_file: ok" in stderr) is is_shown
    assert ("Ran 0 min" in stderr) is is_shown


def record(path: str) -> None:
    recorder = open_recorder(path)
    recorder.from_client(asking("ping"), Forward())
    recorder.from_upstream(answering("{}"), Forward())
    recorder.end()


def test_a_recording_is_private_and_is_replaced_or_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "s.flow"
    counts = []
    for path in (str(file), str(file), f"+{file}"):
        record(path)
        counts.append(len(read_flows(file)))
    assert counts == [1, 1, 2]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_client_may_close_our_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        say_beside_client("nobody reads this")
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            closed.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())


CHANGED = "notifications/tools/list_changed"
BEFORE = "change,stays,goes,stays,delete_a"
AFTER = "change,stays,comes,stays,delete_b"


def is_found(client: StdioClient, name: str, id: str) -> bool:
    answer = client.calls(name, id=id)
    if "result" in answer:
        return True
    assert answer["error"] == {"code": -32601, "message": f"Tool not found: {name}"}
    return False


@pytest.mark.parametrize("quiet", [(), ("-q",)], ids=["usual", "quiet"])
@pytest.mark.parametrize("new_tools", ["hide", "judge"])
def test_a_client_sees_removed_tools_go_and_new_ones_only_with_judge(
    new_tools: str, quiet: tuple[str, ...], tmp_path: Path
) -> None:
    judges = new_tools == "judge"
    flags = (*quiet, *DENY, "--new-tools", new_tools)
    with filtered(*flags, "--", *upstream("--tools", BEFORE), home=tmp_path) as client:
        client.opens()
        for id in ("1", "2"):
            assert names_in(client.asks("tools/list", id=id)) == ["change", "stays", "goes"]
        assert client.calls("change", id="3", tools=AFTER)["method"] == CHANGED
        assert client.hears()["id"] == 3
        after = ["change", "stays", *["comes"] * judges]
        for id in ("4", "5"):
            assert names_in(client.asks("tools/list", id=id)) == after
        assert is_found(client, "stays", "6")
        assert not is_found(client, "goes", "7")
        assert is_found(client, "comes", "8") is judges
        assert not is_found(client, "delete_b", "9")
        assert client.leaves() == 0
        said = client.stderr()
    new = "new tool comes: hidden until you restart the filter; with --new-tools judge"
    assert said.count(new) == (not judges)
    assert said.count("lists stays twice") == 1
    assert "new tool delete_b" not in said
