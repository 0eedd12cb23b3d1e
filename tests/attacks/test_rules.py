"""Ways to get past a rule, tried over real sockets: what must not reach the upstream does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.jsregex.allowance import Allowance
from tests.adapters.mitmproxy.filtered import INITIALIZE, Filtered, call, filtered
from tests.mcp_upstream import saying
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk
from tests.websocket import accept, connect

POLICY = """
interceptor:
  rules:
    - id: no-etc
      conditions:
        - method_equals: tools/call
        - param_matches: {field: arguments.path, pattern: ^/etc}
      actions: [block: "no"]
    - id: only-drafts
      conditions:
        - tool_equals: read_file
        - not: {param_in: {field: arguments.kind, values: [draft]}}
      actions: [block: "no"]
    - id: rename
      conditions: [param_exists: arguments.to]
      actions: [set_param: {field: name, value: "${params.arguments.to}"}]
    - id: budget
      conditions: [method_equals: vendor/costly]
      actions: [rate_limit: {key: "${session_id}", limit: 1, window: 1h}]
    - id: mask
      on: response
      conditions: [method_in: [tools/call, vendor/get]]
      actions: [redact: {pattern: "sk-[a-z]+"}]
    - id: checked
      on: response
      conditions: [method_equals: vendor/get, result_equals: {field: isSecret, value: true}]
      actions: [block: secret]
    - id: cache
      conditions: [method_equals: vendor/get]
      actions: [cache: {key: all, ttl: 1h}]
  method_interceptors:
    resources/read:
      class: ResourceAccessInterceptor
      config: {allowed_paths: [/workspace], deny_patterns: ["*.key"]}
"""
OK = b'{"jsonrpc":"2.0","id":1,"result":{}}'


def run(
    home: Path,
    test: Callable[[Filtered], Coroutine[Any, Any, None]],
    more: str = "",
    **options: Any,
) -> None:
    """Run a test; there may be ``more`` rules, before the others."""

    async def main() -> None:
        path = home / "rules.yaml"
        path.write_text(POLICY.replace("  rules:", f"  rules:{more}", 1))
        async with filtered(home, rules=[str(path)], **options) as between:
            await test(between)

    asyncio.run(main())


def reading(uri: str) -> bytes:
    params = f'{{"uri":{json.dumps(uri)}}}'
    return f'{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{params}}}'.encode()


def draft(arguments: str) -> bytes:
    return call("read_file", f'{{"kind":"draft",{arguments}}}')


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
def test_what_a_rule_refuses_never_reaches_the_upstream(tmp_path: Path, name: str) -> None:
    async def test(between: Filtered) -> None:
        got = await between.ask(REFUSED[name])
        assert got.status in (200, 202, 400)
        assert b"/etc" not in b"".join(request.body for request in between.upstream.asked)
        assert all(request.body == b"[" + OK + b"]" for request in between.upstream.asked)

    run(tmp_path, test)


HALF_A_SECOND = 10_000_000  # steps of patterns
COSTLY_PATTERNS = """
    - id: costly
      conditions: [param_matches: {field: arguments.text, pattern: "(a+)\\\\1c"}]
      actions: [log: {level: info, message: m}]
    - id: ahead
      conditions: [param_matches: {field: arguments.more, pattern: "(?=.*x)a"}]
      actions: [log: {level: info, message: m}]"""


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ('"text":"' + "a" * 9_000_000 + 'bc"', "costly"),
        ('"more":"' + "ab" * 4_000_000 + '"', "ahead"),
    ],
)
def test_a_client_cannot_keep_everybody_waiting_for_a_pattern(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    rule: str,
) -> None:
    """It is refused after some steps, and the operator is told once which rule it was."""
    steps: list[int] = []
    spend = Allowance.spend

    def spend_and_tell(allowance: Allowance, count: int) -> None:
        spend(allowance, count)
        steps.append(count)

    monkeypatch.setattr(Allowance, "spend", spend_and_tell)

    async def test(between: Filtered) -> None:
        for again in range(2):
            del steps[:]
            got = json.loads((await between.ask(draft(arguments))).body)
            assert got["error"]["data"] == {"rule": rule, "action": "error"}
            assert sum(steps) <= HALF_A_SECOND, again
        assert not between.upstream.asked
        assert (await between.ask(draft('"text":"aabaac","more":"ax"'))).status == 200
        assert len(between.upstream.asked) == 1

    run(tmp_path, test, more=COSTLY_PATTERNS)
    warned = [one.getMessage() for one in caplog.records if "takes too long" in one.getMessage()]
    assert len(warned) == 1
    assert f"Rule '{rule}'" in warned[0]


HONEST = {
    "a draft": draft('"path":"/home","n":1.00, "odd":{"a":1,"a":2,"A":3}'),
    "odd keys that no rule reads": draft('"b":1,"B":2,"b":3'),
    "a file in the workspace": reading("file:///workspace/a%20b.txt?v=1#top"),
    "dots that stay inside": reading("file:///workspace/a/../b"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_messages_keep_their_bytes(tmp_path: Path, name: str) -> None:
    async def test(between: Filtered) -> None:
        assert (await between.ask(HONEST[name])).status == 200
        assert [request.body for request in between.upstream.asked] == [HONEST[name]]

    run(tmp_path, test, respond=saying(OK))


COSTLY = b'{"jsonrpc":"2.0","id":1,"method":"vendor/costly","params":{"n":%d}}'


def test_an_invented_session_does_not_get_a_budget_of_its_own(tmp_path: Path) -> None:
    """An upstream without sessions takes any id, so an id must not count."""

    async def test(between: Filtered) -> None:
        for number in range(5):
            await between.ask(COSTLY % number, b"Mcp-Session-Id: invented-%d\r\n" % number)
        assert len(between.upstream.of("vendor/costly")) == 1

    run(tmp_path, test, respond=saying(OK))


GET = b'{"jsonrpc":"2.0","id":1,"method":"vendor/get"}'


def test_what_is_stored_for_one_user_is_not_for_another(tmp_path: Path) -> None:
    async def respond(request: RawRequest, peer: Peer) -> None:
        who = "".join(request.all("authorization") + request.all("cookie"))
        said = {"jsonrpc": "2.0", "id": 1, "result": {"for": who}}
        await peer.say(answer(json.dumps(said).encode()))

    async def test(between: Filtered) -> None:
        users = [b"", b"Authorization: Bearer a\r\n", b"Authorization: Bearer b\r\n",
                 b"Cookie: user=a\r\n", b"X-Api-Key: a\r\n"]  # fmt: skip
        for _ in range(2):
            heard = [json.loads((await between.ask(GET, who)).body) for who in users]
            assert [one["result"]["for"] for one in heard] == [
                "", "Bearer a", "Bearer b", "user=a", "",
            ]  # fmt: skip
        assert len(between.upstream.asked) == len(users)

    run(tmp_path, test, respond=respond)


ANSWERS = {
    "plain": b'{"jsonrpc":"2.0","id":1,"result":{"t":"sk-secret"}}',
    "escaped": b'{"jsonrpc":"2.0","id":1,"result":{"t":"s\\u006b-secret"}}',
    "twice": b'{"jsonrpc":"2.0","id":1,"result":{"t":"x","t":"sk-secret"}}',
    "deep": b'{"jsonrpc":"2.0","id":1,"result":{"a":[[{"t":["sk-secret"]}]]}}',
    "unclear field": b'{"jsonrpc":"2.0","id":1,"result":{"isSecret":false,"issecret":true}}',
    "other id": b'{"jsonrpc":"2.0","id":1.0,"result":{"t":"sk-secret"}}',
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("as_event", [False, True], ids=["json", "event"])
def test_no_secret_gets_past_a_response_rule(tmp_path: Path, name: str, as_event: bool) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        if not as_event:
            await peer.say(answer(ANSWERS[name]))
            return
        await peer.say(SSE_HEAD)
        event = b"data: " + ANSWERS[name] + b"\n\n"
        for at in range(0, len(event), 9):  # wherever the chunks end
            await peer.say(chunk(event[at : at + 9]))
        await peer.say(LAST_CHUNK)

    async def test(between: Filtered) -> None:
        got = await between.ask(GET)
        assert b"secret" not in got.body.replace(b"issecret", b"").replace(b"isSecret", b"")
        if name == "unclear field":
            assert b"-32600" in got.body

    run(tmp_path, test, respond=respond)


SECRET = b'{"jsonrpc":"2.0","id":1,"result":{"t":"sk-secret"}}'
OTHER = b'{"jsonrpc":"2.0","id":1.0,"method":"vendor/other"}'


def test_an_id_used_twice_on_a_socket_does_not_hide_what_is_answered(tmp_path: Path) -> None:
    """The second request would be taken for what the secret answers, and no rule is about it."""
    heard: list[bytes] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while (message := await socket.hear()) is not None:
            heard.append(message)
            if len(heard) == 1:
                await asyncio.sleep(0.3)
            await socket.say(SECRET)

    async def test(between: Filtered) -> None:
        socket = await connect(between.client.reader, between.client.writer)
        await socket.say(GET.replace(b"vendor/get", b"vendor/slow"))
        await socket.say(OTHER)
        answers = [await socket.hear() or b"" for _ in range(2)]
        assert b"-32600" in answers[0]
        assert b'"t":"***"' in answers[1]
        await socket.say(OTHER)  # nothing waits under this id any more
        assert await socket.hear() == SECRET
        assert len(heard) == 2

    rules = "\n    - id: slow\n      on: response\n      conditions: [method_equals: vendor/slow]"
    run(tmp_path, test, respond=respond, more=rules + MASK)


MASK = """
      actions: [redact: {pattern: "sk-[a-z]+"}]
"""


def test_an_id_used_twice_in_a_batch_is_refused(tmp_path: Path) -> None:
    async def test(between: Filtered) -> None:
        got = await between.ask(b"[" + GET + b"," + OTHER + b"]")
        assert b"secret" not in got.body
        assert [one["error"]["code"] for one in json.loads(got.body) if "error" in one] == [-32600]

    run(tmp_path, test, respond=saying(b"[" + SECRET + b"]"))


@pytest.mark.parametrize("asked", [[GET, OTHER], [OTHER, GET], []])
def test_a_resumed_stream_shows_no_secret_under_an_id_that_means_two_things(
    tmp_path: Path, asked: list[bytes]
) -> None:
    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET"):
            await peer.say(SSE_HEAD + chunk(b"data: " + SECRET + b"\n\n") + LAST_CHUNK)
        else:
            await peer.say(answer(b"", status="202 Accepted"))

    async def test(between: Filtered) -> None:
        await between.ask(INITIALIZE)
        session = b"Mcp-Session-Id: s1\r\n"
        for one in asked:
            await between.ask(one, session)
        got = await between.client.ask(get(headers=MCP_HEADERS + session))
        assert b"secret" not in got.body
        assert b"-32600" in got.body

    run(tmp_path, test, respond=respond, session=b"s1")


def test_the_older_transport_is_judged_in_both_directions(tmp_path: Path) -> None:
    to_client: asyncio.Queue[bytes] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET /sse"):
            await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /messages?s=1\n\n"))
            while True:
                await peer.say(chunk(b"data: " + await to_client.get() + b"\n\n"))
        await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
        to_client.put_nowait(ANSWERS["plain"])

    async def test(between: Filtered) -> None:
        await between.client.say(get(path="/sse"))
        await between.client.head()
        await between.client.chunk()
        async with raw_client(between.port) as poster:
            bad = draft('"path":"/etc/x"')
            assert (await poster.ask(post(bad, path="/messages?s=1"))).status == 202
            assert b"-32001" in await between.client.chunk()
            await poster.ask(post(draft('"path":"/home"'), path="/messages?s=1"))
            assert b'"t":"***"' in await between.client.chunk()
        assert len(between.upstream.of("tools/call")) == 1

    run(tmp_path, test, respond=respond)


def test_what_an_older_upstream_asks_is_answered_where_it_listens(tmp_path: Path) -> None:
    """The answer of a rule is posted to the endpoint of the session, not said on the stream."""
    answered: asyncio.Queue[RawRequest] = asyncio.Queue()
    ask = b'{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{}}'
    rules = """
interceptor:
  rules:
    - id: no-models
      conditions: [from: server, method_equals: sampling/createMessage]
      actions: [inject_error: {code: -1, message: no models, data: {why: "${method}"}}]
"""

    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET /sse"):
            await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /messages?s=1\n\n"))
            await peer.say(chunk(b"data: " + ask + b"\n\n") + chunk(b"data: " + OK + b"\n\n"))
            await asyncio.Event().wait()
        answered.put_nowait(request)
        await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))

    async def test(between: Filtered) -> None:
        await between.client.say(
            get(path="/sse", headers=MCP_HEADERS + b"Authorization: Bearer t\r\n")
        )
        await between.client.head()
        await between.client.chunk()
        assert await between.client.chunk() == b"data: " + OK + b"\n\n"
        request = await asyncio.wait_for(answered.get(), 20)
        assert request.line.startswith("POST /messages?s=1 ")
        assert request.all("authorization") == ["Bearer t"]
        assert json.loads(request.body) == {
            "jsonrpc": "2.0", "id": 77, "error": {
                "code": -1, "message": "no models", "data": {"why": "sampling/createMessage"},
            },
        }  # fmt: skip

    async def main() -> None:
        path = tmp_path / "rules.yaml"
        path.write_text(rules)
        async with filtered(tmp_path, rules=[str(path)], respond=respond) as between:
            await test(between)

    asyncio.run(main())


def test_the_stateless_revision_is_judged_with_its_headers(tmp_path: Path) -> None:
    meta = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
    headers = (
        b"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: read_file\r\n"
    )

    def stateless(arguments: str) -> bytes:
        return draft(arguments).replace(b'"params":{', f'"params":{{{meta},'.encode())

    async def test(between: Filtered) -> None:
        got = await between.ask(stateless('"path":"/etc/x"'), headers)
        assert json.loads(got.body)["error"]["data"]["rule"] == "no-etc"
        assert (await between.ask(stateless('"path":"/home"'), headers)).status == 200
        assert len(between.upstream.of("tools/call")) == 1

    run(tmp_path, test, respond=saying(OK))
