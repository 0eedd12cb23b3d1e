"""Ways to get an answer, or a request of the upstream, past a rule."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.attacks.ruled import OK, draft, under_policy
from tests.filtered import INITIALIZE, filtered
from tests.mcp_upstream import saying
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, TIMEOUT, Peer, RawRequest, answer, chunk

GET = b'{"jsonrpc":"2.0","id":1,"method":"vendor/get"}'


async def test_a_cached_result_of_one_user_is_not_given_to_another(tmp_path: Path) -> None:
    async def respond(request: RawRequest, peer: Peer) -> None:
        who = "".join(request.all("authorization") + request.all("cookie"))
        said = {"jsonrpc": "2.0", "id": 1, "result": {"for": who}}
        await peer.say(answer(json.dumps(said).encode()))

    async with under_policy(tmp_path, respond=respond) as between:
        users = [b"", b"Authorization: Bearer a\r\n", b"Authorization: Bearer b\r\n",
                 b"Cookie: user=a\r\n", b"X-Api-Key: a\r\n"]  # fmt: skip
        for _ in range(2):
            heard = [json.loads((await between.ask(GET, who)).body) for who in users]
            assert [one["result"]["for"] for one in heard] == [
                "", "Bearer a", "Bearer b", "user=a", "",
            ]  # fmt: skip
        assert len(between.upstream.asked) == len(users)


async def test_a_result_cached_for_one_url_is_not_given_to_another(tmp_path: Path) -> None:
    """Some servers know their users by the URL, and some origins have several servers."""

    async def respond(request: RawRequest, peer: Peer) -> None:
        said = {"jsonrpc": "2.0", "id": 1, "result": {"for": request.line.split()[1]}}
        await peer.say(answer(json.dumps(said).encode()))

    async with under_policy(tmp_path, respond=respond) as between:
        paths = ["/mcp", "/mcp?token=a", "/mcp?token=b", "/other/mcp"]
        for _ in range(2):
            heard = [json.loads((await between.ask(GET, path=path)).body) for path in paths]
            assert [one["result"]["for"] for one in heard] == paths
        assert len(between.upstream.asked) == len(paths)


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
async def test_response_rules_remove_every_secret(
    tmp_path: Path, name: str, as_event: bool
) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        if not as_event:
            await peer.say(answer(ANSWERS[name]))
            return
        await peer.say(SSE_HEAD)
        event = b"data: " + ANSWERS[name] + b"\n\n"
        for at in range(0, len(event), 9):  # wherever the chunks end
            await peer.say(chunk(event[at : at + 9]))
        await peer.say(LAST_CHUNK)

    async with under_policy(tmp_path, respond=respond) as between:
        got = await between.ask(GET)
        assert b"secret" not in got.body.replace(b"issecret", b"").replace(b"isSecret", b"")
        if name == "unclear field":
            assert b"-32600" in got.body


MASK = """
      actions: [redact: {pattern: "sk-[a-z]+"}]
"""


SECRET = b'{"jsonrpc":"2.0","id":1,"result":{"t":"sk-secret"}}'

OTHER = b'{"jsonrpc":"2.0","id":1.0,"method":"vendor/other"}'


async def test_an_id_used_twice_in_a_batch_is_refused(tmp_path: Path) -> None:
    async with under_policy(tmp_path, respond=saying(b"[" + SECRET + b"]")) as between:
        got = await between.ask(b"[" + GET + b"," + OTHER + b"]")
        assert b"secret" not in got.body
        assert [one["error"]["code"] for one in json.loads(got.body) if "error" in one] == [-32600]


@pytest.mark.parametrize("asked", [[GET, OTHER], [OTHER, GET], []])
async def test_a_resumed_stream_shows_no_secret_under_an_ambiguous_id(
    tmp_path: Path, asked: list[bytes]
) -> None:
    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET"):
            await peer.say(SSE_HEAD + chunk(b"data: " + SECRET + b"\n\n") + LAST_CHUNK)
        else:
            await peer.say(answer(b"", status="202 Accepted"))

    async with under_policy(tmp_path, respond=respond, session=b"s1") as between:
        await between.ask(INITIALIZE)
        session = b"Mcp-Session-Id: s1\r\n"
        for one in asked:
            await between.ask(one, session)
        got = await between.client.ask(get(headers=MCP_HEADERS + session))
        assert b"secret" not in got.body
        assert b"-32600" in got.body


async def test_the_older_transport_is_judged_in_both_directions(tmp_path: Path) -> None:
    to_client: asyncio.Queue[bytes] = asyncio.Queue()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET /sse"):
            await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /messages?s=1\n\n"))
            while True:
                await peer.say(chunk(b"data: " + await to_client.get() + b"\n\n"))
        await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
        to_client.put_nowait(ANSWERS["plain"])

    async with under_policy(tmp_path, respond=respond) as between:
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


async def test_a_request_of_an_older_upstream_is_answered_at_its_endpoint(tmp_path: Path) -> None:
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

    path = tmp_path / "rules.yaml"
    path.write_text(rules)
    async with filtered(tmp_path, rules=[str(path)], respond=respond) as between:
        await between.client.say(
            get(path="/sse", headers=MCP_HEADERS + b"Authorization: Bearer t\r\n")
        )
        await between.client.head()
        await between.client.chunk()
        assert await between.client.chunk() == b"data: " + OK + b"\n\n"
        request = await asyncio.wait_for(answered.get(), TIMEOUT)
        assert request.line.startswith("POST /messages?s=1 ")
        assert request.all("authorization") == ["Bearer t"]
        assert json.loads(request.body) == {
            "jsonrpc": "2.0", "id": 77, "error": {
                "code": -1, "message": "no models", "data": {"why": "sampling/createMessage"},
            },
        }  # fmt: skip
