"""``mcp-tool-filter -- CMD`` in front of real child processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands.relaying import DENY, gone, names_in, pid_in, text_in
from tests.cli.launched import run, surroundings
from tests.make import asking, calling
from tests.raw_upstream import TIMEOUT
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
        assert client.calls("delete_file", id='"x"') == {
            "jsonrpc": "2.0",
            "id": "x",
            "error": {"code": -32601, "message": "Tool not found: delete_file"},
        }
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


def test_a_bare_carriage_return_hides_no_call(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with filtered(*DENY, "--", *upstream(journal=journal), home=tmp_path) as client:
        client.say(asking("ping") + b"\r" + calling("delete_file", id="2"))
        assert client.hears()["error"]["code"] == -32600
        assert client.asks("ping", id="3")["id"] == 3
    assert b"delete_file" not in journal.read_bytes()


def test_a_relay_without_patterns_warns(tmp_path: Path) -> None:
    with filtered("-q", "--", *upstream(), home=tmp_path) as client:
        client.said_on_stderr("Warning: nothing is denied")


def test_a_line_that_is_not_json_gets_an_error(client: StdioClient) -> None:
    client.say(b"hello")
    assert client.hears() == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": "Invalid Request"},
    }
    assert client.asks("ping")["result"] == {}


def test_text_that_a_command_prints_between_messages_goes_to_stderr(client: StdioClient) -> None:
    assert text_in(client.calls("noise")) == "noise"
    said = client.said_on_stderr("not { JSON")
    assert "[not JSON, from the command] Loading the model ...\n" in said


def test_the_commands_stderr_is_passed_on(tmp_path: Path) -> None:
    with filtered("--", *upstream("--stderr", "ready to serve"), home=tmp_path) as client:
        client.asks("ping")
        assert "ready to serve\n" in client.said_on_stderr("ready")


def test_a_request_of_the_upstream_is_answered_by_the_client(client: StdioClient) -> None:
    client.say(calling("ask"))
    assert client.hears()["method"] == "roots/list"
    answer = b'{"jsonrpc":"2.0","id":"q1","result":{"roots":[]}}'
    client.say(answer)
    assert text_in(client.hears()) == answer.decode() + "\n"


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


def test_a_large_answer_passes(client: StdioClient) -> None:
    assert len(text_in(client.calls("big", bytes=9_000_000))) == 9_000_000


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
    assert all(
        f"'{name}'" not in modules for name in ("mitmproxy", "asyncio", "h11", "ssl", "shutil")
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--deny", "^no_such"], 'Error: The pattern "^no_such" matches no tool\n'),
        (["--deny-glob", "delete_*"], ""),
    ],
)
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


def test_strict_requires_a_pattern_before_the_command_starts(tmp_path: Path) -> None:
    ended = run("--strict", "--", *upstream(), home=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("Error: Nothing is denied: there is no deny or allow pattern\n")


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


@pytest.mark.parametrize(
    ("line", "is_answer"),
    [
        ('{"id":%s,"result":{}}', True),
        ('{"id":%s,"result":{},"level":"info"}', True),
        ('{"id":%s,"error":"no"}', True),
        ('[{"id":%s,"result":{}}]', True),
        ('{"jsonrpc":"1.0","id":%s,"result":{}}', True),
        ('{"jsonrpc":"2.0","id":%s,"result":{"x":NaN}}', True),
        ('{"jsonrpc":"2.0","id":%s,"result":{}', True),
        ('{"jsonrpc":"2.0","result":{}}', True),
        ('{"level":"info","message":{"jsonrpc":"2.0","id":%s,"method":"tools/call"}}', False),
        ('{"sent":[{"jsonrpc":"2.0","id":%s,"result":{}}]}', False),
        ('{"level":"info","id":%s,"message":"{\\"jsonrpc\\":\\"2.0\\"}"}', False),
        ('DEBUG sent {"jsonrpc":"2.0","id":%s,"result":{}}', False),
    ],
)
def test_a_broken_answer_fails_its_request_and_a_log_line_fails_none(
    line: str, is_answer: bool, tmp_path: Path
) -> None:
    with filtered(*DENY, "--", *upstream("--tools", "say"), home=tmp_path) as client:
        client.opens()
        heard = client.calls("say", raw=line.replace("%s", "7"), id="7")
        if is_answer:
            assert heard["error"] == {
                "code": -32603,
                "message": "The server sent an invalid response",
            }
        else:
            assert text_in(heard) == "say"
        assert heard["id"] == 7


@pytest.mark.parametrize("size", [11_000_000, 21_000_000])
@pytest.mark.parametrize(
    "head",
    [
        '{"jsonrpc":"2.0","method":"notifications/message","params":{"id":7,"result":{},"data":"',
        '{"jsonrpc":"2.0","params":{"level":"info","data":"',
        '{"time":1,"message":"',
    ],
)
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
    process = subprocess.Popen(
        words if stderr == "closed" else ran,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=writer,
        env=surroundings(tmp_path),
    )
    said = b"".join(calling("delete_file", id=str(n)) + b"\n" for n in range(1, 300))
    heard, _ = process.communicate(asking("tools/list", id="0") + b"\n" + said, timeout=60)
    assert process.returncode == 0
    assert sorted(json.loads(line)["id"] for line in heard.splitlines()) == list(range(300))
    if stderr == "closed":  # what is meant for people was not written into it
        assert b"Warning" not in recording.read_bytes()
    os.close(reader)
    os.close(writer)


def test_inherited_descriptors_may_be_non_blocking(tmp_path: Path) -> None:
    (stdin, to_us), (from_us, stdout) = os.pipe(), os.pipe()
    os.set_blocking(stdin, False)
    os.set_blocking(stdout, False)
    process = subprocess.Popen(
        [sys.executable, "-m", "mcp_tool_filter", *DENY, "--", *upstream()],
        stdin=stdin,
        stdout=stdout,
        env=surroundings(tmp_path),
    )
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
