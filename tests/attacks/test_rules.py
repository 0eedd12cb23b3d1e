"""Ways to get a request past a rule, tried over real sockets: none reaches the upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.adapters.mitmproxy.filtered import call
from tests.attacks.ruled import OK, draft, under_policy
from tests.mcp_upstream import saying


def reading(uri: str) -> bytes:
    params = f'{{"uri":{json.dumps(uri)}}}'
    return f'{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{params}}}'.encode()


REFUSED = {
    "plain": draft('"path":"/etc/passwd"'),
    "escaped value": draft('"path":"\\u002fetc/passwd"'),
    "escaped key": draft('"p\\u0061th":"/etc/passwd"'),
    "key twice": draft('"path":"/home","path":"/etc/passwd"'),
    "key twice, the other way": draft('"path":"/etc/passwd","path":"/home"'),
    "key in another case": draft('"Path":"/etc/passwd"'),
    "key in two cases": draft('"path":"/home","PATH":"/etc/passwd"'),
    "key cut at NUL": draft('"path":"/home","path\\u0000x":"/etc/passwd"'),
    "full-width key": draft('"\uff50ath":"/etc/passwd"'),
    "holder twice": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file",'
        b'"arguments":{"kind":"draft"},"arguments":{"path":"/etc/passwd"}}}'
    ),
    "holder in another case": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file",'
        b'"arguments":{"kind":"draft"},"Arguments":{"path":"/etc/passwd"}}}'
    ),
    "a condition that is negated, without the field": call("read_file", "{}"),
    "a condition that is negated, in another case": call("read_file", '{"Kind":"draft"}'),
    "a condition that is negated, twice": call("read_file", '{"kind":"draft","kind":"x"}'),
    "notification": draft('"path":"/etc/x"').replace(b'"id":1,', b""),
    "batch": b"[" + draft('"path":"/etc/x"') + b"]",
    "batch with an honest member": b"[" + OK + b"," + draft('"path":"/etc/x"') + b"]",
    "renamed into a denied tool": draft('"to":"delete_file"'),
    "renamed into no tool": draft('"to":"nothing"'),
    "uri outside": reading("file:///etc/passwd"),
    "uri with dots": reading("file:///workspace/../etc/passwd"),
    "uri with escaped dots": reading("file:///workspace/%2e%2e/etc/passwd"),
    "uri escaped twice": reading("file:///workspace/%252e%252e/etc/passwd"),
    "uri escaped six times": reading("file:///workspace/%252525252525252e%2e/etc/passwd"),
    "uri with backslashes": reading("file:///workspace\\..\\..\\etc\\passwd"),
    "uri beside": reading("file:///workspace-evil/a"),
    "uri with NUL": reading("file:///workspace/a\0.txt"),
    "uri on a host": reading("file://evil/workspace/a"),
    "uri relative": reading("../etc/passwd"),
    "uri of another scheme": reading("https://localhost/workspace/a"),
    "uri with dots behind a query": reading("file:///workspace/a?/../../etc/passwd"),
    "uri of a denied kind": reading("file:///workspace/a.KEY"),
    "uri of a denied kind, escaped": reading("file:///workspace/a%2ekey?x=1"),
    "uri twice": reading("file:///workspace/a").replace(
        b'"params":{', b'"params":{"uri":"file:///etc/x",'
    ),
    "uri in another case": reading("file:///workspace/a").replace(
        b'"params":{', b'"params":{"URI":"file:///etc/x",'
    ),
    "subscribe": reading("file:///etc/x").replace(b"resources/read", b"resources/subscribe"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_request_never_reaches_the_upstream(tmp_path: Path, name: str) -> None:
    async with under_policy(tmp_path) as between:
        got = await between.ask(REFUSED[name])
        assert got.status in (200, 202, 400)
        assert b"/etc" not in b"".join(request.body for request in between.upstream.asked)
        assert all(request.body == b"[" + OK + b"]" for request in between.upstream.asked)


HONEST = {
    "a draft": draft('"path":"/home","n":1.00, "odd":{"a":1,"a":2,"A":3}'),
    "odd keys that no rule reads": draft('"b":1,"B":2,"b":3'),
    "a file in the workspace": reading("file:///workspace/a%20b.txt?v=1#top"),
    "dots that stay inside": reading("file:///workspace/a/../b"),
}


@pytest.mark.parametrize("name", HONEST)
async def test_honest_messages_keep_their_bytes(tmp_path: Path, name: str) -> None:
    async with under_policy(tmp_path, respond=saying(OK)) as between:
        assert (await between.ask(HONEST[name])).status == 200
        assert [request.body for request in between.upstream.asked] == [HONEST[name]]


COSTLY = b'{"jsonrpc":"2.0","id":1,"method":"vendor/costly","params":{"n":%d}}'


async def test_an_invented_session_id_gets_no_budget_of_its_own(tmp_path: Path) -> None:
    """An upstream without sessions takes any id, so an id must not count."""

    async with under_policy(tmp_path, respond=saying(OK)) as between:
        for number in range(5):
            await between.ask(COSTLY % number, b"Mcp-Session-Id: invented-%d\r\n" % number)
        assert len(between.upstream.of("vendor/costly")) == 1


async def test_the_stateless_revision_is_judged_with_its_headers(tmp_path: Path) -> None:
    meta = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
    headers = (
        b"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: read_file\r\n"
    )

    def stateless(arguments: str) -> bytes:
        return draft(arguments).replace(b'"params":{', f'"params":{{{meta},'.encode())

    async with under_policy(tmp_path, respond=saying(OK)) as between:
        got = await between.ask(stateless('"path":"/etc/x"'), headers)
        assert json.loads(got.body)["error"]["data"]["rule"] == "no-etc"
        assert (await between.ask(stateless('"path":"/home"'), headers)).status == 200
        assert len(between.upstream.of("tools/call")) == 1
