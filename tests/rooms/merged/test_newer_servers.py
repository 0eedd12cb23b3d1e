"""Servers that speak only 2026-07-28: clients with a session, and without one."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from tests.raw_upstream import TIMEOUT
from tests.rooms.merged.newer_upstream import META, REVISION, newer_upstream
from tests.rooms.merged.talking import Talking, asked, events_in, rich, talking
from tests.rooms.serve.test_serve import serving

CAPABILITIES = '{"elicitation":{},"tasks":{}}'


def stateless(client: Talking, method: str, params: dict[str, Any], name: str = "") -> Any:
    """Ask as a client of 2026-07-28."""
    meta = {
        f"{META}protocolVersion": REVISION,
        f"{META}clientInfo": {"name": "n", "version": "1"},
        f"{META}clientCapabilities": json.loads(CAPABILITIES),
    }
    headers = {"mcp_protocol_version": REVISION, "mcp_method": method}
    if name:
        headers["mcp_name"] = name
    raw = asked(method, json.dumps({**params, "_meta": meta}), '"x"')
    return client.send("POST", raw, **headers)


def test_a_session_client_works_with_a_server_without_sessions(tmp_path: Path) -> None:
    with newer_upstream("new") as remote:
        text = f'[servers.new]\nurl = "{remote.url}"\n[servers.one]\n{rich("one")}'
        with serving(tmp_path, text) as it, talking(it) as client:
            it.says("new: http")
            assert "new_echo" in client.names()
            answer = json.loads(client.call("new_echo", '{"a":"b"}', id='"i"'))
            said = json.loads(answer["result"]["content"][0]["text"])
            assert (answer["id"], said) == ("i", {"name": "echo", "arguments": {"a": "b"}})
            headers, message = remote.journal[-1]
            assert headers["mcp-name"] == "echo"
            assert headers["mcp-param-a"] == "b"
            declared = message["params"]["_meta"][f"{META}clientCapabilities"]
            assert set(declared) == {"roots", "sampling", "elicitation"}
            found = json.loads(client.call("new_ask"))
            retried = json.loads(found["result"]["content"][0]["text"])
            assert retried["requestState"] == "state é"
            assert retried["inputResponses"]["q 1"]["action"] == "accept"
            assert retried["inputResponses"]["r"]["roots"]
            ids = [json.loads(one)["id"] for one in client.heard if b'"id"' in one]
            assert ids == ['new:"q 1"', 'new:"r"']
            endless = json.loads(client.call("new_ask_for_ever"))
            assert endless["error"]["code"] == -32603
            asks = [one for _, one in remote.journal if one["method"] == "tools/call"]
            assert len(asks) == 1 + 2 + 11
            remote.tools.append("later")
            remote.news.set()
            read = client.ask("resources/read", '{"uri":"new://new"}')
            assert b'"text": "new"' in read


def test_the_stateless_revision_is_offered_if_every_server_speaks_it(tmp_path: Path) -> None:
    with newer_upstream("a") as first, newer_upstream("b") as second:
        text = f'[servers.a]\nurl = "{first.url}"\n[servers.b]\nurl = "{second.url}"\n'
        with serving(tmp_path, text + f"[servers.one]\nmerge = false\n{rich('one')}") as it:
            it.says("merged: ")
            client = Talking(it.port, "/mcp")
            found = stateless(client, "server/discover", {}).json()["result"]
            assert REVISION in found["supportedVersions"]
            assert found["instructions"].endswith("a: Newer a.\n\nb: Newer b.")
            listed = stateless(client, "tools/list", {}).json()["result"]
            names = [one["name"] for one in listed.pop("tools")]
            assert listed == {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}
            assert (names[0], names[4]) == ("a_echo", "b_echo")
            uris = stateless(client, "resources/list", {}).json()["result"]
            assert uris["ttlMs"] == 30_000
            called = stateless(client, "tools/call", {"name": "b_ask"}, "b_ask").json()
            assert called["result"]["resultType"] == "input_required"
            headers, message = second.journal[-1]
            assert (headers["mcp-name"], message["params"]["name"]) == ("ask", "ask")
            declared = message["params"]["_meta"][f"{META}clientCapabilities"]
            assert declared == {"elicitation": {}}
            wrong = stateless(client, "tools/call", {"name": "b_ask"}, "b_echo")
            assert (wrong.status, wrong.json()["error"]["code"]) == (400, -32020)
            unknown = stateless(client, "tools/call", {"name": "c"}, "c").json()
            assert unknown["error"] == {"code": -32601, "message": "Tool not found: c"}


def test_a_subscription_hears_of_changes_with_its_own_id(tmp_path: Path) -> None:
    text = '[servers.a]\nurl = "%s"\nnew-tools = "judge"\n'
    with newer_upstream("a") as remote, serving(tmp_path, text % remote.url) as it:
        it.says("merged: ")
        client = Talking(it.port, "/mcp")
        meta = {f"{META}protocolVersion": REVISION, f"{META}clientCapabilities": {}}
        params = {"_meta": meta, "notifications": {"toolsListChanged": True}}
        headers = client.headers(
            {"mcp_protocol_version": REVISION, "mcp_method": "subscriptions/listen"}
        )
        connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=TIMEOUT)
        body = asked("subscriptions/listen", json.dumps(params), '"sub"')
        connection.request("POST", "/mcp", body, headers)
        news = events_in(connection.getresponse())
        acknowledged = json.loads(next(news))
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["_meta"][f"{META}subscriptionId"] == "sub"
        assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
        remote.tools.append("later")
        remote.news.set()
        changed = json.loads(next(news))
        assert changed["method"] == "notifications/tools/list_changed"
        assert changed["params"]["_meta"][f"{META}subscriptionId"] == "sub"
        connection.close()


def test_a_client_without_a_session_is_told_to_open_one(tmp_path: Path) -> None:
    with serving(tmp_path, f"[servers.one]\n{rich('one')}") as it:
        answer = stateless(Talking(it.port, "/mcp"), "server/discover", {})
    assert (answer.status, answer.json()["error"]["code"]) == (404, -32601)
