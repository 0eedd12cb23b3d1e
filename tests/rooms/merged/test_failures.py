"""One bad server harms no other, and nothing of a client's own reaches a server."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.raw_upstream import free_port
from tests.rooms.merged.talking import Talking, asked, rich, talking
from tests.rooms.serve.test_serve import serving
from tests.session_upstream import session_upstream
from tests.waiting import eventually


def test_a_client_that_only_lists_starts_no_command(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    text = f"[servers.one]\n{rich('one', '--journal', str(journal))}"
    with serving(tmp_path, text) as it:
        it.says("one: http")
        before = journal.read_text().count("initialize {")
        with talking(it) as client:
            assert "one_echo" in client.names()
            assert journal.read_text().count("initialize {") == before
            client.call("one_echo")
            assert journal.read_text().count("initialize {") == before + 1


def test_a_missing_server_is_left_out_and_joins_later(tmp_path: Path) -> None:
    port = free_port()
    text = f'[servers.one]\n{rich("one")}[servers.late]\nurl = "http://127.0.0.1:{port}/mcp"\n'
    with serving(tmp_path, text) as it, talking(it) as client:
        assert {one.partition("_")[0] for one in client.names()} == {"one"}
        missing = json.loads(client.call("late_search"))
        assert missing["error"]["code"] == -32000
        assert "late" in missing["error"]["message"]
        with session_upstream(port=port) as remote:
            client.hears("tools/list_changed")
            assert any(one.startswith("late_") for one in client.names())
            assert remote.methods()


def test_a_server_that_dies_in_a_call_answers_and_comes_back(tmp_path: Path) -> None:
    text = f"[servers.one]\n{rich('one')}[servers.two]\n{rich('two')}"
    with serving(tmp_path, text) as it, talking(it) as client:
        assert json.loads(client.call("one_die"))["error"]["code"] == -32000
        assert b"result" in client.call("two_echo")
        assert b"result" in client.call("one_echo")


def test_nothing_of_a_clients_own_reaches_a_server(tmp_path: Path) -> None:
    with session_upstream() as remote:
        text = f'[servers.far]\nurl = "{remote.url}"\nheader = ["X-Team: a"]\n'
        with serving(tmp_path, text) as it:
            client = Talking(it.port, "/mcp")
            client.opens()
            remote.forget()
            tool = client.names()[0]
            answer = client.send(
                "POST",
                asked("tools/call", f'{{"name":"{tool}","arguments":{{}}}}', "5"),
                authorization="Bearer mine",
                cookie="a=b",
                x_api_key="k",
            )
            assert answer.status == 200
            sent = [one.headers for one in remote.journal]
    assert sent
    for headers in sent:
        names = {name.lower() for name in headers}
        assert not names & {"authorization", "cookie", "x-api-key"}, headers
        assert {name.lower(): value for name, value in headers.items()}["x-team"] == "a"
    assert client.session not in str(sent)


def test_a_session_that_a_server_has_forgotten_is_opened_again(tmp_path: Path) -> None:
    with session_upstream() as remote:
        text = f'[servers.far]\nurl = "{remote.url}"\n'
        with serving(tmp_path, text) as it, talking(it) as client:
            tool = client.names()[0]
            assert b"result" in client.call(tool)
            remote.sessions += 1
            assert b"result" in client.call(tool)


def test_sessions_are_our_own(tmp_path: Path) -> None:
    text = f"[servers.one]\n{rich('one')}"
    with serving(tmp_path, text) as it, talking(it) as client:
        assert len(client.session) == 32
        other = Talking(it.port, "/mcp", session="0" * 32)
        assert other.send("POST", asked("tools/list")).status == 404
        assert Talking(it.port, "/mcp").send("POST", asked("tools/list")).status == 400
        assert client.send("DELETE").status == 200
        assert client.send("POST", asked("tools/list")).status == 404


def test_a_cursor_and_an_unknown_method_are_refused(tmp_path: Path) -> None:
    text = f"[servers.one]\n{rich('one')}"
    with serving(tmp_path, text) as it, talking(it) as client:
        assert b'"code":-32602' in client.ask("tools/list", '{"cursor":"a"}')
        assert b'"code":-32601' in client.ask("tasks/list")
        assert client.ask("ping", id='"p"') == b'{"jsonrpc":"2.0","id":"p","result":{}}'
        broken = client.send("POST", b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}')
        assert broken.status == 400


def test_the_audit_log_has_one_line_a_call_with_both_names(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    text = f'audit-log = "{log}"\n[servers.one]\n{rich("one")}'
    with serving(tmp_path, text) as it, talking(it) as client:
        client.call("one_echo")
        client.call("one_none")
        assert eventually(lambda: log.exists() and b"one_none" in log.read_bytes())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [line for line in lines if line.get("method") == "tools/call"]
    assert [(one["server"], one["tool"], one.get("exposed")) for one in calls] == [
        ("one", "echo", "one_echo"),
        ("mcp", "one_none", None),
    ]


def test_a_changed_file_changes_what_is_merged(tmp_path: Path) -> None:
    one = f"[servers.one]\n{rich('one')}"
    with serving(tmp_path, one) as it, talking(it) as client:
        assert "one_echo" in client.names()
        it.file.write_text(one + 'prefix = "x_"\ndeny = ["^link$"]\n')
        os.kill(it.process.pid, signal.SIGHUP)
        client.hears("tools/list_changed")
        assert eventually(lambda: "x_echo" in client.names())
        assert eventually(lambda: "x_link" not in client.names())
