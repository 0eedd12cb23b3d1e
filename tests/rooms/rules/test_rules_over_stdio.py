"""Rules over stdio: in front of a command, and in front of a URL."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.make import asking, calling
from tests.rooms.stdio.relaying import text_in
from tests.session_upstream import SessionUpstream, session_upstream
from tests.stdio_client import StdioClient, filtered, upstream
from tests.waiting import eventually

RULES = """
interceptor:
  rules:
    - id: no-etc
      conditions: [tool_equals: read_file, param_matches: {field: arguments.path, pattern: ^/etc}]
      actions: [block: not there]
    - id: slow
      conditions: [param_exists: arguments.slow]
      actions: [delay: 300ms]
    - id: ask
      conditions: [param_exists: arguments.ask]
      actions: [run_script: {path: ./check.sh, decides: true}]
    - id: mask
      on: response
      conditions: [tool_equals: read_file]
      actions: [redact: {pattern: file}]
    - id: twice
      conditions: [tool_equals: write_file, param_exists: arguments.twice]
      actions: [fork: {}]
"""


def ruled_by(home: Path, *rules: str) -> tuple[str, str]:
    """Write a file with these rules; return the flag that names it."""
    path = home / "rules.yaml"
    path.write_text(f"interceptor: {{rules: [{', '.join(rules)}]}}")
    return "--rules", str(path)


def rules(home: Path) -> tuple[str, str]:
    script = home / "check.sh"
    script.write_text("#!/bin/sh\ngrep -q yes || { echo no; exit 1; }\n")
    script.chmod(0o755)
    (home / "rules.yaml").write_text(RULES)
    return "--rules", str(home / "rules.yaml")


@pytest.fixture
def http() -> Iterator[SessionUpstream]:
    with session_upstream() as started:
        yield started


IS_URL = pytest.mark.parametrize("is_url", [False, True])


def before(
    is_url: bool, http: SessionUpstream, *flags: str, journal: Path | None = None
) -> tuple[str, ...]:
    """Return the words that start the filter before a URL, or before a command."""
    command = upstream(journal=journal)
    return ("--stdio", "-u", http.url, *flags) if is_url else (*flags, "--", *command)


@IS_URL
def test_rules_apply_in_front_of_a_command_and_of_a_url(
    is_url: bool, http: SessionUpstream, tmp_path: Path
) -> None:
    journal, flags = tmp_path / "journal", ("--deny", "^delete_", *rules(tmp_path))
    with filtered(*before(is_url, http, *flags, journal=journal), home=tmp_path) as client:
        client.opens()
        client.asks("tools/list", id="2")
        blocked = client.calls("read_file", id="3", path="/etc/x")
        assert blocked["error"]["data"] == {"rule": "no-etc", "action": "block"}
        assert text_in(client.calls("read_file", id="4")) == "read_***"
        asked = client.calls("read_file", id="5", ask="no")
        assert asked["error"]["message"] == "no"
        assert text_in(client.calls("read_file", id="6", ask="yes")) == "read_***"
        assert text_in(client.calls("read_file", id="7", slow=1)) == "read_***"
        assert client.calls("delete_file", id="8")["error"]["code"] == -32601
        assert "Rules: 5: no-etc, slow" in client.said_on_stderr("Rules:")
        assert client.leaves() == 0
        said = [one.message for one in http.calls()]
        said += [] if is_url else map(json.loads, journal.read_bytes().splitlines())
    sent = [one["params"]["arguments"] for one in said if one["method"] == "tools/call"]
    assert sent == [{}, {"ask": "yes"}, {"slow": 1}]


def test_waiting_messages_are_passed_on_after_the_end_of_input(tmp_path: Path) -> None:
    with filtered(*rules(tmp_path), "--", *upstream(), home=tmp_path) as client:
        client.opens()
        client.say(calling("write_file", id="8", arguments='{"slow":1}'))
        assert client.leaves() == 0
        assert json.loads(client.raw[-1])["id"] == 8


HELD = "{id: late, on: response, conditions: [tool_equals: read_file], actions: [delay: 1500ms]}"


@pytest.mark.parametrize("crashes", [False, True])
def test_an_answer_that_a_rule_holds_at_the_end_is_delivered(crashes: bool, tmp_path: Path) -> None:
    with filtered(*ruled_by(tmp_path, HELD), "--", *upstream(), home=tmp_path) as client:
        client.opens()
        client.say(calling("read_file", id="8"), calling("crash" if crashes else "argv", id="9"))
        assert (client.ends() if crashes else client.leaves()) == int(crashes)
        heard = [json.loads(line) for line in client.raw]
        assert [(one["id"], "result" in one) for one in heard[1:]] == [(8, True), (9, not crashes)]


def test_a_signal_does_not_wait_for_a_rule(tmp_path: Path) -> None:
    rule, journal = HELD.replace("1500ms", "5m"), tmp_path / "journal"
    words = (*ruled_by(tmp_path, rule), "--", *upstream(journal=journal))
    with filtered(*words, home=tmp_path) as client:
        client.opens()
        client.say(calling("read_file", id="8"))
        eventually(lambda: b"read_file" in journal.read_bytes())
        client.process.send_signal(signal.SIGTERM)
        client.ends()


SCRIPTED = "actions: [run_script: {path: ./pretty.py, decides: true}]"
PRETTY = (
    f"{{id: in, conditions: [tool_equals: read_file], {SCRIPTED}}}",
    f"{{id: out, on: response, conditions: [tool_equals: read_file], {SCRIPTED}}}",
)


def test_what_a_script_writes_on_several_lines_is_sent_on_one(tmp_path: Path) -> None:
    script = tmp_path / "pretty.py"
    script.write_text(
        f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(json.load(sys.stdin), indent=2))\n"
    )
    script.chmod(0o755)
    journal = tmp_path / "journal"
    words = (*ruled_by(tmp_path, *PRETTY), "--", *upstream(journal=journal))
    with filtered(*words, home=tmp_path) as client:
        client.opens()
        assert text_in(client.calls("read_file", id="2", path="a")) == "read_file"
        assert client.leaves() == 0
    assert all(json.loads(line) for line in (*journal.read_bytes().splitlines(), *client.raw))


def test_the_answer_to_a_copy_is_dropped(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    words = (*rules(tmp_path), "--", *upstream(journal=journal))
    with filtered(*words, home=tmp_path) as client:
        client.opens()
        client.calls("write_file", id="1", twice=1)
        client.asks("ping", id="2")
        assert client.leaves() == 0
        ids = [json.loads(line).get("id") for line in client.raw]
    assert [id for id in ids if id is not None] == [ids[0], 1, 2]
    assert journal.read_bytes().count(b"twice") == 2


def test_an_edit_of_the_rules_applies_to_the_running_session(tmp_path: Path) -> None:
    with filtered(*rules(tmp_path), "--", *upstream(), home=tmp_path) as client:
        client.opens()
        assert text_in(client.calls("read_file", id="1")) == "read_***"
        (tmp_path / "rules.yaml").write_text("interceptor: {rules: []}\n")
        eventually(lambda: text_in(client.calls("read_file", id="2")) == "read_file")
        assert client.leaves() == 0


@contextmanager
def ruled(home: Path, program: str, rule: str) -> Iterator[StdioClient]:
    """Run a command, a Python program, behind one rule."""
    words = (*ruled_by(home, rule), "--", sys.executable, "-c", program)
    with filtered(*words, home=home) as client:
        yield client


ASKING = """
import sys
ask = '{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage"}'
print(f'[{ask % 7},{{"jsonrpc":"2.0","id":9,"method":"ping"}}]', flush=True)
print(f"[{ask % 8}]", flush=True)
print('{"jsonrpc":"2.0","method":"told","params":{"lines":[%s,%s]}}' %
      (sys.stdin.readline().strip(), sys.stdin.readline().strip()), flush=True)
"""


def test_requests_of_the_command_in_a_batch_are_answered(tmp_path: Path) -> None:
    asked = "[from: server, method_equals: sampling/createMessage]"
    rule = f"{{id: r, conditions: {asked}, actions: [block: no]}}"
    with ruled(tmp_path, ASKING, rule) as client:
        assert client.hears() == [{"jsonrpc": "2.0", "id": 9, "method": "ping"}]
        one, batch = client.hears()["params"]["lines"]
    assert (one["id"], one["error"]["message"]) == (7, "no")
    assert [each["id"] for each in batch] == [8]


TWICE = """
import sys
sys.stdin.readline()
print('{"jsonrpc":"2.0","method":"ready"}', flush=True)
sys.stdin.readline()
print('{"jsonrpc":"2.0","id":1,"result":{"t":"secret"}}', flush=True)
"""


def test_an_id_used_twice_does_not_hide_an_answer(tmp_path: Path) -> None:
    """The command gets no second request under the id, so its answer is to the first."""
    masks = "conditions: [method_equals: vendor/get], actions: [redact: {pattern: secret}]"
    rule = f"{{id: r, on: response, {masks}}}"
    with ruled(tmp_path, TWICE, rule) as client:
        client.say(asking("vendor/get"))
        assert client.hears()["method"] == "ready"
        assert client.asks("vendor/other", id="1")["error"]["code"] == -32600
        assert client.asks("ping", id="2")["result"] == {"t": "***"}


@contextmanager
def slow_receiver() -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that keeps what is posted, and takes a while for each."""
    received: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(0.05)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", received
        server.shutdown()


@IS_URL
def test_webhooks_arrive_although_the_session_ends(
    is_url: bool, http: SessionUpstream, tmp_path: Path
) -> None:
    with slow_receiver() as (receiver, received):
        hook = f"actions: [webhook: {{url: '{receiver}'}}]"
        flags = ruled_by(tmp_path, f"{{id: r, conditions: [tool_equals: read_file], {hook}}}")
        with filtered(*before(is_url, http, *flags), home=tmp_path) as client:
            client.opens()
            for id in range(30):
                client.calls("read_file", id=str(id))
            assert client.leaves() == 0
        assert len(received) == 30


NOISY = """
import os, subprocess, sys
def shout(message):
    print("from print")
    sys.__stdout__.write("from the real stdout")
    os.write(1, b"from descriptor 1")
    subprocess.run(["echo", "from a child process"])
shout("while imported")
"""


@IS_URL
def test_what_python_code_prints_goes_to_stderr(
    is_url: bool, http: SessionUpstream, tmp_path: Path
) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    flags = ruled_by(tmp_path, "{id: r, actions: [transform: {python: 'noisy:shout'}]}")
    with filtered(*before(is_url, http, *flags), home=tmp_path) as client:
        client.opens()
        assert client.calls("read_file", id="4")["id"] == 4
        client.said_on_stderr("from a child process")
        assert client.leaves() == 0
        assert b"from" not in b"".join(client.raw)


def test_in_front_of_a_url_messages_wait_behind_a_held_call_and_cancelled_calls_are_not_sent(
    http: SessionUpstream, tmp_path: Path
) -> None:
    rule = "{id: r, conditions: [param_exists: arguments.slow], actions: [delay: 1500ms]}"
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}'
    slow = '{"slow":1}'
    with filtered(*before(True, http, *ruled_by(tmp_path, rule)), home=tmp_path) as client:
        client.opens()
        client.say(
            calling("read_file", id="1", arguments=slow), calling("read_file", id="2"), cancel % 2,
            calling("read_file", id="3", arguments=slow), cancel % 3, asking("ping", id="4"),
        )  # fmt: skip
        assert client.leaves() == 0
        assert sorted(json.loads(line)["id"] for line in client.raw[1:]) == [1, 4]
        assert [one.message["id"] for one in http.calls()] == [1]
        *_, one, other, last = http.methods()  # each has a connection of its own
        assert ({one, other}, last) == ({"POST tools/call", "POST ping"}, "DELETE")
