"""What one client asks for never changes what another one sees."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.attacks.hosts import between, in_each_host
from tests.make import asking, calling
from tests.mcp_upstream import RESULT, McpUpstream, tool, tool_list
from tests.raw_client import MCP_HEADERS, RawClient, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer

LIST = asking("tools/list")


@dataclass
class Asking:
    """A client without a session."""

    client: RawClient
    upstream: McpUpstream

    async def ask(self, body: bytes, *headers: str) -> bytes:
        said = "".join(f"{one}\r\n" for one in (*headers, "MCP-Protocol-Version: 2025-06-18"))
        return (await self.client.ask(post(body, headers=MCP_HEADERS + said.encode()))).body

    async def tools(self, *headers: str) -> list[str]:
        listed = json.loads(await self.ask(LIST, *headers))
        return [one["name"] for one in listed["result"]["tools"]]

    async def may_call(self, name: str, *headers: str) -> bool:
        """Call a tool; tell whether the call reached the upstream."""
        before = len(self.upstream.of("tools/call"))
        said = await self.ask(calling(name), *headers)
        arrived = len(self.upstream.of("tools/call")) > before
        assert arrived is (b"Tool not found" not in said), said
        return arrived


@asynccontextmanager
async def asking_one_that_lists_by(
    host: str, home: Path, *names: str, more: dict[str, bytes] | None = None
) -> AsyncIterator[Asking]:
    """Start an upstream that lists to each client ``shared``, ``wipe_disk`` and tools that are
    named after the values of these headers; ``more`` are tools for everybody, by name."""
    added = {} if more is None else more

    def lists(request: RawRequest, id: str) -> bytes:
        own = [tool(f"of_{value}") for name in names for value in request.all(name)]
        tools = [tool("shared"), tool("wipe_disk"), *own, *added.values()]
        return answer(tool_list(tools, id=id))

    async with (
        between(host, home, lists=lists) as (upstream, it),
        raw_client(it.port) as client,
    ):
        yield Asking(client, upstream)


NAMES = [
    "Client-Cert", "X-Forwarded-Client-Cert", "X-SSL-Client-S-DN", "X-Client-DN", "X-Spiffe-Id",
    "X-Amzn-Mtls-Clientcert-Subject", "X-Forwarded-Host", "X-Real-IP", "X-Anything", "DN",
    "Accept-Language", "Baggage", "Signature-Input", "X-Forwarded-For",
]  # fmt: skip


@in_each_host
async def test_whoever_a_header_names_has_a_list_of_their_own(host: str, tmp_path: Path) -> None:
    """The names of the headers by which upstreams know their users are endless."""
    async with asking_one_that_lists_by(host, tmp_path, *NAMES) as asking:
        for name in NAMES:
            ann, bob = f"{name}: ann", f"{name}: bob"
            assert await asking.tools() == ["shared"]
            assert await asking.tools(ann) == ["shared", "of_ann"], name
            assert await asking.may_call("of_bob", bob), name  # before anybody has seen the list
            assert await asking.tools(bob) == ["shared", "of_bob"], name
            for who, own, other in ((ann, "of_ann", "of_bob"), (bob, "of_bob", "of_ann")):
                assert await asking.may_call(own, who), name
                assert not await asking.may_call(other, who), name
                assert not await asking.may_call("wipe_disk", who), name
            assert not await asking.may_call("of_ann"), name
            assert await asking.tools() == ["shared"], name


RENEWED = [
    "traceparent: 00-{0}-1-01", "X-Request-Id: {0}", "Fly-Request-Id: {0}", "Signature: s=:{0}:",
    "DPoP: {0}.{0}.{0}", "baggage: sentry-trace_id={0},user=ann", "X-Amz-Date: {0}",
    'Signature-Input: s=("@method");created={0};keyid="a"', "X-Forwarded-For: 10.0.0.1:4{0}",
    "Authorization: Signature keyId=a,nonce={0}", "Cookie: AWSALB={0}; a=b", "Content-MD5: {0}",
    "Sentry-Trace: {0}-{0}", "If-None-Match: {0}", "X-Retry-Count: {0}", "X-Nonce: {0}",
    "sw8: {0}", "X-Client-Port: {0}", "X-Trace: {0}", "Correlation-Context: {0}",
]  # fmt: skip


@in_each_host
async def test_a_value_that_each_request_renews_makes_no_new_asker(
    host: str, tmp_path: Path
) -> None:
    """Else nothing would be pinned: each request would be the first of its asker."""
    more: dict[str, bytes] = {}
    async with asking_one_that_lists_by(host, tmp_path, more=more) as asking:
        for number, header in enumerate(RENEWED):
            shown = await asking.tools(header.format(1))
            assert "shared" in shown, header
            new = f"new_{number}"
            more[new] = tool(new)
            assert await asking.tools(header.format(2)) == shown, header
            assert not await asking.may_call(new, header.format(3)), header
            assert await asking.may_call("shared", header.format(4)), header


ODD = {
    "a cursor that is no string": [asking("tools/list", params='{"cursor":5}')],
    "no cursor": [asking("tools/list", params='{"cursor":null}')],
    "a cursor that nobody gave": [asking("tools/list", params='{"cursor":"part"}')],
    "params of its own": [asking("tools/list", params='{"part":1}')],
    "one id twice": [
        b"[" + asking("tools/list") + b"," + asking("tools/list", params='{"cursor":"part"}') + b"]"
    ],
    "two ids": [
        b"[" + asking("tools/list", params='{"cursor":"part"}') + b"," + asking("ping", id="1.0")
        + b"," + asking("tools/list", id="2") + b"]",
    ],
    "an act before": [asking("part"), LIST],
    "a header": [LIST],
    "another revision": [LIST],
    "another program": [LIST],
}  # fmt: skip
HEADERS = {"a header": b"X-Part: 1\r\n", "another revision": b"MCP-Protocol-Version: part\r\n"}


def shake_hands(number: int, program: str) -> bytes:
    """Each number declares capabilities that nobody else has."""
    said = f'{{"experimental":{{"{number}":{{}}}}}}'
    params = f'{{"protocolVersion":"2025-06-18","capabilities":{said},"clientInfo":"{program}"}}'
    return asking("initialize", params=params)


@in_each_host
async def test_no_odd_request_takes_tools_from_others(host: str, tmp_path: Path) -> None:
    """The upstream answers what is odd with a part of its list."""
    number, sessions = count(), {b"part"}

    def session() -> bytes:
        return b"session-%d" % next(number)

    def is_part(request: RawRequest) -> bool:
        named = request.head + request.body
        is_odd = b"part" in named.lower() or b'"cursor"' in request.body
        own = request.all("mcp-session-id")
        if is_odd:
            sessions.update(one.encode() for one in own)
        return is_odd or (bool(own) and own[0].encode() in sessions)

    def listing_for(request: RawRequest, id: str) -> bytes:
        tools = [tool("read"), tool("wipe_disk"), *([] if is_part(request) else [tool("write")])]
        return tool_list(tools, id=id)

    async def respond(request: RawRequest, peer: Peer) -> None:
        is_part(request)
        asked = json.loads(request.body)
        if not isinstance(asked, list):
            return await peer.say(answer(RESULT))
        both = [listing_for(request, json.dumps(one["id"])) for one in asked]
        return await peer.say(answer(b"[" + b",".join(both) + b"]"))

    async with between(
        host, tmp_path, session=session, respond=respond,
        lists=lambda request, id: answer(listing_for(request, id)),
    ) as (upstream, it), raw_client(it.port) as client:  # fmt: skip

        async def begins(place: int, program: str) -> bytes:
            said = await client.ask(post(shake_hands(place, program)))
            [id] = [
                one for one in said.head.split(b"\r\n") if one.lower().startswith(b"mcp-session")
            ]
            return MCP_HEADERS + id + b"\r\n"

        for place, (name, bodies) in enumerate(ODD.items()):
            program = "part" if name == "another program" else "usual"
            odd = await begins(place, program)
            if program == "part":
                sessions.add(odd.split(b": ")[-1].strip())
            for body in bodies:
                said = await client.ask(post(body, headers=odd + HEADERS.get(name, b"")))
                assert b"wipe_disk" not in said.body, name
            other = await begins(place, "usual")
            for _ in range(2):
                seen = json.loads((await client.ask(post(LIST, headers=other))).body)
                assert [one["name"] for one in seen["result"]["tools"]] == ["read", "write"], name
            before = len(upstream.of("tools/call"))
            await client.ask(post(calling("write"), headers=other))
            assert len(upstream.of("tools/call")) > before, name


SLOW = """
interceptor:
  rules:
    - {id: slow, conditions: [tool_equals: read_file], actions: [delay: 1s]}
"""
FEW = """
interceptor:
  rules:
    - id: few
      conditions: [tool_equals: read_file]
      actions: [rate_limit: {key: "all ${credential}", limit: 2, window: 1h}]
"""
OF_GATEWAYS = [
    "Client-Cert", "X-Forwarded-Client-Cert", "X-SSL-Client-S-DN", "X-Client-DN",
    "X-Forwarded-User", "X-Amzn-Mtls-Clientcert-Subject", "X-Spiffe-Id",
]  # fmt: skip
CANCEL = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'


@in_each_host
async def test_without_a_session_no_other_client_ends_a_call(host: str, tmp_path: Path) -> None:
    """Both are at the same address, and count their requests from one."""
    rules = tmp_path / "slow.yaml"
    rules.write_text(SLOW)
    async with (
        between(host, tmp_path, f"rules={rules}") as (upstream, it),
        raw_client(it.port) as one,
        raw_client(it.port) as other,
    ):
        call = calling("read_file")
        assert (await one.ask(post(call))).status == 200
        await one.say(post(call))
        said = await other.ask(post(CANCEL))
        assert said.status in (200, 202)
        assert b'"result"' in (await one.answer()).body
        assert len(upstream.of("tools/call")) == 2


@in_each_host
async def test_a_credential_that_is_made_up_lifts_no_limit(host: str, tmp_path: Path) -> None:
    rules = tmp_path / "few.yaml"
    rules.write_text(FEW)
    async with (
        between(host, tmp_path, f"rules={rules}") as (upstream, it),
        raw_client(it.port) as client,
    ):

        async def passes(*headers: str) -> bool:
            said = "".join(f"{one}\r\n" for one in headers).encode()
            body = (await client.ask(post(calling("read_file"), headers=MCP_HEADERS + said))).body
            return b"Rate limit exceeded" not in body and b"Too many credentials" not in body

        ann, bob = "Authorization: Bearer ann", "Cookie: id=bob"
        assert await passes(ann)
        assert await passes(ann, "Cookie: a=1")
        for more in (
            "Cookie: a=2",
            "Cookie: a=2; b=3",
            "X-Api-Key: x",
            "X-Made-Up-Token: 1",
            "A: b",
        ):
            assert not await passes(ann, more), more
        for spelling in ("bearer ann", "BEARER  ann", "Bearer ann "):
            assert not await passes(f"Authorization: {spelling}"), spelling
        assert await passes(bob)
        assert await passes(f"{bob}; junk=1")
        assert not await passes("Cookie: junk=2; id=bob;")
        common = "X-SSL-Client-Verify: SUCCESS", "X-Amzn-Mtls-Clientcert-Issuer: CA"
        for name in OF_GATEWAYS:
            assert await passes(f"{name}: CN=dan of {name}", *common), name
            assert await passes(f"{name}: CN=eve of {name}", *common), name
            assert await passes(f"{name}: CN=eve of {name}", "X-Made-Up: 1"), name
            assert not await passes(f"{name}: CN=eve of {name}", "Cookie: a=4"), name
        assert await passes("Authorization: Bearer cid")  # who does not share theirs
        assert not await passes("Cookie: " + "; ".join(f"a{n}={n}" for n in range(65)))
        assert len(upstream.of("tools/call")) == 5 + 3 * len(OF_GATEWAYS)
