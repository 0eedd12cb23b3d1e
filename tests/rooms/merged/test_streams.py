"""Resumed streams, batches, logins, and the stateless revision, through ``/mcp``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.oauth_upstream import oauth_upstream
from tests.rooms.merged.talking import Talking, asked, rich, talking
from tests.rooms.serve.test_serve import serving
from tests.session_upstream import session_upstream
from tests.waiting import eventually


def test_events_keep_their_servers_ids_and_a_stream_is_resumed_there(tmp_path: Path) -> None:
    with session_upstream() as remote:
        text = f'[servers.far]\nurl = "{remote.url}"\n'
        with serving(tmp_path, text) as it:
            client = Talking(it.port, "/mcp").opens()
            body = asked("tools/call", '{"name":"far_resume","arguments":{}}', "5")
            begun = client.send("POST", body)
            assert b"id: far.5\n" in begun.body, begun
            resumed = client.send("GET", accept="text/event-stream", last_event_id="far.5")
            assert resumed.events()[-1]["id"] == 5
            gets = [one for one in remote.journal if one.method == "GET"]
            assert gets[-1].headers["last-event-id"] == "5"


def test_a_batch_of_the_first_revision_is_answered_as_one(tmp_path: Path) -> None:
    text = f"[servers.one]\n{rich('one')}[servers.two]\n{rich('two')}"
    with serving(tmp_path, text) as it:
        client = Talking(it.port, "/mcp", revision="2025-03-26").opens()
        calls = [
            asked("tools/call", f'{{"name":"{name}","arguments":{{}}}}', str(number))
            for number, name in enumerate(("one_echo", "two_echo", "none"))
        ]
        answer = client.send("POST", b"[" + b",".join(calls) + b"]")
        found = answer.json() if answer.body.startswith(b"[") else answer.events()
        assert sorted(one["id"] for one in found) == [0, 1, 2]
        newer = Talking(it.port, "/mcp").opens()
        assert newer.send("POST", b"[" + b",".join(calls) + b"]").status == 400


def test_a_server_that_wants_a_login_says_how(tmp_path: Path) -> None:
    with oauth_upstream() as remote:
        text = f'[servers.far]\nurl = "{remote.url}"\n[servers.one]\n{rich("one")}'
        with serving(tmp_path, text) as it, talking(it) as client:
            it.says("one: http")
            assert all(one.startswith("one_") for one in client.names())
            error = json.loads(client.call("far_anything"))["error"]
            assert error["code"] == -32000
            assert f"mcp-tool-filter login {remote.url}" in error["message"]


def test_delete_ends_the_sessions_of_all_servers(tmp_path: Path) -> None:
    with session_upstream() as remote:
        text = f'[servers.far]\nurl = "{remote.url}"\n'
        with serving(tmp_path, text) as it:
            client = Talking(it.port, "/mcp").opens()
            client.call("far_read_file")
            remote.forget()
            assert client.send("DELETE").status == 200
            assert eventually(lambda: "DELETE" in remote.methods())
            [ended] = [one for one in remote.journal if one.method == "DELETE"]
            assert ended.headers["mcp-session-id"] == remote.session
