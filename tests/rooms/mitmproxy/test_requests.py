"""Requests in a real mitmproxy: what changes, what waits, what is lost, and what hints hide.

Hints in every transport are in ``tests/end_to_end/test_choosing.py``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError

from mcp_tool_filter.core.engine.client_h1 import H1Client
from mcp_tool_filter.core.engine.steps import Answer
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.messages.messages import Single
from mcp_tool_filter.core.policy.effects import Deciding, Decision, Delay, InOrder
from mcp_tool_filter.core.policy.situation import Situation
from mcp_tool_filter.core.policy.verdict import Forward, Verdict
from mcp_tool_filter.core.process import background
from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from mcp_tool_filter.rooms.mitmproxy.flows import Picture, flow_of
from mcp_tool_filter.rooms.mitmproxy.options import edit_deny
from mcp_tool_filter.rooms.mitmproxy.selftest import PROBES, ProbeRun
from tests.core.upstream.mcp_script import introduction, message_in, result
from tests.core.upstream.mcp_script import tool_list as listed
from tests.filtered import (
    ANSWERING,
    ENDPOINT,
    INITIALIZE,
    SECRET,
    Filtered,
    ask,
    blocked,
    call,
    filtered,
    lost,
    not_found,
    ruled,
    stumble,
)
from tests.mcp_upstream import RESULT, Respond, mcp_upstream, saying, tool, tool_list
from tests.proxy import certified, proxy
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import (
    SSE_HEAD,
    TIMEOUT,
    Peer,
    RawRequest,
    answer,
    chunk,
    free_port,
    raw_upstream,
    streaming,
    until,
)
from tests.served import served
from tests.shapes import call as named
from tests.shapes import talking

hosts = pytest.mark.parametrize("host", ["plain", "lean", "dump"])


async def test_our_replies_join_an_event_stream_as_events_without_id(tmp_path: Path) -> None:
    body = b"[" + call("delete_file", id="7") + b"," + call("read_file") + b"]"
    event = b"id: 1\ndata: " + RESULT + b"\n\n"
    async with filtered(tmp_path, respond=streaming(event)) as between:
        ours = b"data: " + not_found("delete_file", "7") + b"\n\n"
        assert (await between.ask(body)).body == ours + event


# Messages of our own to the upstream: copies that rules send, and answers to what it asks.


async def test_copies_of_a_renamed_call_have_the_new_name_in_the_header(tmp_path: Path) -> None:
    """An upstream of 2026-07-28 refuses a request whose header says another name than its body. The
    answers to copies are dropped."""
    rules = """
  - {id: rename, conditions: [tool_equals: read_file], actions: [set_param: {field: name, value: delete_file}]}
  - {id: fork, actions: [fork: {copies: 2}]}
"""  # noqa: E501 - one rule, one line
    async with ruled(tmp_path, rules, respond=saying(SECRET), deny=["^never$"]) as between:
        meta = b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
        body = call("read_file").replace(b'"arguments":{}', b'"arguments":{},' + meta)
        headers = b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
        headers += b"User-Agent: c\r\nMcp-Name: read_file\r\nMcp-Session-Id: s\r\n"
        assert (await between.ask(body, headers)).body == SECRET
        await until(lambda: len(between.upstream.of("tools/call")) == 3)
    asked = between.upstream.of("tools/call")
    assert len({str(json.loads(request.body)["id"]) for request in asked}) == 3
    for request in asked:
        assert json.loads(request.body)["params"]["name"] == "delete_file"
        names = ("mcp-session-id", "mcp-name", "mcp-method")
        assert [request.all(name) for name in names] == [["s"], ["delete_file"], ["tools/call"]]


async def test_a_request_from_the_upstream_is_answered_for_the_client(tmp_path: Path) -> None:
    sampling = "from: server, method_equals: sampling/createMessage"
    rules = f"  - {{id: none, conditions: [{sampling}], actions: [block: no models here]}}\n"
    ask = b'{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{}}'
    result, answered = b"data: " + SECRET + b"\n\n", asyncio.Queue[RawRequest]()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if b"-32001" in request.body:
            answered.put_nowait(request)
            await peer.say(answer(b"", status="202 Accepted"))
        else:
            await streaming(b"data: " + ask + b"\n\n", result)(request, peer)

    async with ruled(tmp_path, rules, respond=respond) as between:
        headers = b"User-Agent: c\r\nAuthorization: Bearer t\r\n"
        assert (await between.ask(call("read_file"), headers)).body == result
        request = await asyncio.wait_for(answered.get(), TIMEOUT)
        assert request.body == blocked("none", "no models here", "77")
        assert request.all("authorization") == ["Bearer t"]


# An exchange at which our code raises is refused, never sent on.


@pytest.mark.parametrize(("where", "what"), [
    (H1Client, "receive"), (Picture, "_make_request"), (Picture, "_seen_request"),
    (Picture, "_hide_body"),
])  # fmt: skip
def test_an_error_in_our_layer_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, where: type, what: str
) -> None:
    """mitmproxy would log it, and the client would wait for ever."""
    monkeypatch.setattr(where, what, stumble)
    (probe,) = (one for one in PROBES if one.what == "an allowed call")
    run = ProbeRun(probe)
    run.play()
    assert run.has_closed or run.to_client.startswith(b"HTTP/1.1 500")
    assert run.to_upstream == b""


# Answers of the upstream that depend on how it connects them: the older transport, large ones


@pytest.mark.parametrize("on_sockets", [False, True])
async def test_a_clients_list_does_not_take_its_stream(tmp_path: Path, on_sockets: bool) -> None:
    """HTTP+SSE: some upstreams answer only on the latest stream. No client sees a list of ours."""
    streams: list[Peer] = []

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.line.startswith("GET"):
                streams.append(peer)
                await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /m?1\n\n"))
                continue
            await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
            method, names = message_in(request).get("method", ""), ["read_file", "delete_file"]
            if request.all("authorization"):
                names.append("mine")
            said = {"initialize": introduction("2024-11-05"), "tools/list": listed(*names)}
            if "id" in message_in(request):
                await streams[-1].say_event(result(request, said.get(method, {})))

    options: dict[str, Any] = {"deny": ["^delete_"], "endpoint": ["/sse"]}
    async with raw_upstream(script) as upstream:
        if on_sockets:
            running: Any = served(to=upstream.url, **options)
        else:
            running = proxy(ToolFilter(), to=upstream.url, home=tmp_path, **options)
        async with running as it, talking("legacy stream", it.port, who="Bearer ann") as ann:
            hello = json.loads(INITIALIZE.replace(b"2025-06-18", b"2024-11-05"))
            heard = [await ann.ask(one) for one in (hello, named("mine"), named("unknown", 2))]
    assert [one["id"] for one in heard] == [0, 1, 2]
    assert [one.get("error", {}).get("code") for one in heard] == [None, None, -32601]
    assert sum(b"tools/list" in one.body for one in upstream.requests) == 2
    opened = [one.all("authorization") for one in upstream.requests if not one.body]
    assert opened == [[], ["Bearer ann"]]


@pytest.mark.parametrize("name", ["read_file", "delete_file"])
async def test_an_answer_is_freed_at_once(tmp_path: Path, name: str) -> None:
    """Until garbage collection, the next large answer would need new memory from the system."""
    async with filtered(tmp_path) as on:
        await on.ask(call(name))
        gc.collect()
        gc.disable()
        try:
            await on.ask(call(name))
            assert not [one for one in gc.get_objects() if isinstance(one, Answer)]
        finally:
            gc.enable()


async def test_a_large_answer_comes_in_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs mitmproxy as much as a small answer; it asks for 64 KiB at a time."""
    sizes: list[int] = []
    receive = Upstream.receive

    def noting(self: Upstream, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(Upstream, "receive", noting)
    large = RESULT.replace(b"[]", b'["' + b"x" * 8_000_000 + b'"]')
    async with filtered(tmp_path, respond=saying(large)) as between:
        assert (await between.ask(call("read_file"))).body == large
    assert max(sizes) > 65535


# Decisions that wait until the test opens a gate: only the message that waits is held.


class DelaysSlow:
    """A link that delays whatever has the word "slow" in it."""

    def decide(self, message: Single, situation: Situation) -> Decision[Verdict]:
        return self._wait() if b"slow" in message.place.raw else Forward()

    def _wait(self) -> Deciding[Verdict]:
        yield Delay(60.0)
        return Forward()


@dataclass
class Gate:
    """What the delays wait for."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    async def sleep(self, seconds: float) -> None:
        assert seconds == 60.0
        self.waiting += 1
        try:
            await self.opened.wait()
        finally:
            self.waiting -= 1

    async def reached(self, number: int = 1) -> None:
        """Wait until so many delays wait."""
        await until(lambda: self.waiting == number)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(background, "sleep", gate.sleep)
    return gate


@asynccontextmanager
async def gated(
    gate: Gate, home: Path, respond: Respond = ANSWERING, host: str = "plain"
) -> AsyncIterator[Filtered]:
    addon = ToolFilter(links=(DelaysSlow(),))
    async with filtered(home, addon=addon, host=host, respond=respond) as it:
        yield it
        gate.opened.set()


def slow(id: str) -> bytes:
    return call("read_file", '{"speed":"slow"}', id)


def news(text: str) -> bytes:
    return f'{{"jsonrpc":"2.0","method":"notifications/{text}"}}'.encode()


@hosts
async def test_only_the_waiting_request_is_held_back(tmp_path: Path, gate: Gate, host: str) -> None:
    async with gated(gate, tmp_path, host=host) as on, raw_client(on.port) as other:
        waiting = asyncio.create_task(on.ask(slow("1")))
        await gate.reached()
        assert (await other.ask(post(call("read_file")))).body == RESULT
        assert (await other.ask(post(call("delete_file")))).body == not_found("delete_file")
        assert len(on.upstream.asked) == 1
        gate.opened.set()
        assert (await waiting).body == RESULT
        assert [one.body for one in on.upstream.asked] == [call("read_file"), slow("1")]


async def test_a_request_is_sent_as_it_was_judged(tmp_path: Path, gate: Gate) -> None:
    """Whatever another script does to its flow while it waits."""
    async with gated(gate, tmp_path) as on:
        waiting = asyncio.create_task(on.ask(slow("1")))
        await gate.reached()
        [site] = on.addon.proxy.sites.values()
        [exchange] = site.exchanges
        flow = flow_of(exchange)
        assert flow
        flow.request.content = call("delete_file")
        gate.opened.set()
        assert (await waiting).body == RESULT
        assert [one.body for one in on.upstream.asked] == [slow("1")]


@pytest.mark.parametrize("leaves", [True, False])
async def test_nothing_waits_after_an_end(leaves: bool, tmp_path: Path, gate: Gate) -> None:
    """Neither an event of a stream, nor what comes behind it."""

    async def respond(_request: RawRequest, peer: Peer) -> None:
        events = (b"data: %b\n\n" % news(text) for text in ("slow", "behind"))
        await peer.say(SSE_HEAD + chunk(b"".join(events)))
        await peer.left()

    async with gated(gate, tmp_path, respond) as on:
        await on.client.say(get(path="/mcp"))
        await on.client.head()
        await gate.reached()
        if leaves:
            on.client.close()
        else:
            on.addon.done()
        await gate.reached(0)
        assert len(on.addon.proxy.effects.background) == 0
        on.client.close()
    gc.collect()
    assert [one for one in gc.get_objects() if isinstance(one, InOrder) and one.is_waiting] == []


# The upstream is lost, and may come back


def _reset_connection() -> socket.socket:
    """Return one that the other side has broken off already."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
    with suppress(OSError):
        while True:
            ours.getpeername()
    return ours


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_connection_that_is_reset_before_it_is_used_is_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    """It has no address then, on which mitmproxy insists."""
    tls = certified(tmp_path) if is_tls else None
    open_connection = asyncio.open_connection

    async def open_reset(*_address: object, **_how: object) -> object:
        return await open_connection(sock=_reset_connection())

    async with (
        filtered(tmp_path, tls=tls, fail_fast=["false"]) as it,
        raw_client(it.port) as client,
    ):
        await it.exposed()  # our own fetch is over
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "open_connection", open_reset)
            assert (await client.ask(post(call("read_file")))).body == lost("1")
        assert (await client.ask(post(call("read_file")))).body == RESULT
        assert it.proxy.errors() == []


async def test_a_returned_upstream_is_noticed_without_a_client(tmp_path: Path) -> None:
    """One of two is lost, and starts slowly; the other's clients notice nothing."""
    names, is_starting, said = ["stays"], True, list[str]()

    def lists(_request: RawRequest, id: str) -> bytes:
        if is_starting and said:
            return answer(b"starting", status="503 Service Unavailable", kind="text/plain")
        return answer(tool_list([tool(name) for name in names], id=id))

    addon = ToolFilter(warn=said.append)
    options = {"deny": ["^delete_"], "endpoint": ENDPOINT, "fail_fast": ["false"]}
    ports = free_port(), free_port()
    async with mcp_upstream(lists=lists) as gone, mcp_upstream(tools=[tool("other")]) as there:
        specs = [f"reverse:{gone.url}@{ports[0]}", f"reverse:{there.url}@{ports[1]}"]
        async with proxy(addon, to=specs, home=tmp_path, **options):
            await addon.proxy.ready.wait()
            addon.proxy.changes.lose(addon.proxy.sites[specs[0]])
            assert addon.proxy.state()["upstream_up"] is False
            names.append("comes")
            assert await ask(ports[1], "other") == RESULT
            is_lost = f"Warning: Lost connection to upstream MCP {gone.url}; waiting for it to come"
            assert said == [f"{is_lost} back"]
            is_starting = False
            await until(lambda: len(said) >= 2)
            assert addon.proxy.state()["upstream_up"] is True
    assert said[1:] == [f"The upstream {gone.url} is back: new tool comes"]


async def test_a_kept_client_connection_reaches_a_returned_upstream(tmp_path: Path) -> None:
    """mitmproxy would answer all its requests with the error of the first that failed."""
    port, addon = free_port(), ToolFilter(warn=lambda _text: None)
    options = {"deny": ["^x"], "endpoint": ENDPOINT, "fail_fast": ["false"]}
    request, url = post(call("read")), f"http://127.0.0.1:{port}"
    running = proxy(addon, to=url, home=tmp_path, **options)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        async with mcp_upstream(tools=[tool("read")], port=port):
            client = await enter(raw_client((await enter(running)).port))
            assert (await client.ask(request)).body == RESULT
        for _ in range(2):
            assert b"Upstream connection lost" in (await client.ask(request)).body
        await enter(mcp_upstream(tools=[tool("read")], port=port))
        assert (await client.ask(request)).body == RESULT


# What hints hide

READING = ', "annotations" : {"readOnlyHint": true}'
READ, WRITE, MINE = tool("read_file", READING), tool("write_file"), tool("mine", READING)
CAUTIOUS: dict[str, Any] = {"deny": ["^never$"], "read_only": ["true"]}


async def test_a_hint_stays_pinned_where_new_tools_are_judged(tmp_path: Path) -> None:
    """Neither a changed definition lifts it, nor removing the tool and adding it again."""
    tools = [READ, WRITE]
    async with filtered(tmp_path, tools=tools, **CAUTIOUS, new_tools=["judge"]) as between:
        assert await between.names() == ["read_file"]
        tools[:] = [tool("read_file"), tool("write_file", READING), MINE]
        for _ in range(2):
            assert await between.names() == ["read_file", "mine"]  # as it was pinned, and a new one
        tools[:] = [MINE]
        assert await between.names() == ["mine"]
        tools[:] = [MINE, tool("write_file", READING), tool("read_file")]
        for _ in range(2):
            assert "write_file" not in await between.names()
            assert (await between.ask(call("write_file"))).body == not_found("write_file")


async def test_options_can_be_edited_while_mitmproxy_runs(tmp_path: Path) -> None:
    """As with ``:set`` in mitmproxy's console. What is refused changes nothing."""
    both = tool("both", ', "annotations":{"readOnlyHint":true,"openWorldHint":false}')
    all_three = ["read_file", "write_file", "both"]
    edits = {
        ("deny=^never$",): all_three, ("read_only=true",): ["read_file", "both"],
        ("deny_hint=open-world",): ["both"],
        ("except=^write", "except=^no"): ["write_file", "both"],
        ("deny_hint=destructive", "deny_hint=not-idempotent"): all_three,
        ("read_only=false",): all_three, ("except=^no",): ["read_file", "both"],
        ("deny=^read",): ["both"],
    }  # fmt: skip
    wrong = ["deny_hint=open_world", "deny_hint", "except=", "read_only=x", "read_only"]
    wrong += ["deny=(", "deny=(a+)+", "new_tools=x", "fail_fast=?", "ignore_hosts=localhost"]
    given: dict[str, Any] = {"deny": ["^never$"]}
    async with filtered(tmp_path, tools=[READ, WRITE, both], **given) as between:

        async def agree_on(exposed: list[str]) -> None:
            assert await between.names() == exposed
            for name in ("read_file", "write_file", "both"):
                answered = json.loads((await between.ask(call(name))).body)
                assert ("result" in answered) is (name in exposed)

        for texts, exposed in edits.items():
            ctx.options.set(*texts)
            await agree_on(exposed)
            for bad in wrong:
                with pytest.raises(OptionsError, match=r"^Error: "):
                    ctx.options.set(bad)
            await agree_on(exposed)


async def test_a_click_in_mitmweb_adds_an_exception_to_a_hint(tmp_path: Path) -> None:
    async with filtered(tmp_path, tools=[READ, WRITE], **CAUTIOUS) as between:
        assert edit_deny(["^never$"], ["^write_file$"]) == ""
        assert await between.names() == ["read_file", "write_file"]
        assert edit_deny(["("], ["^x$"]).startswith("Error: Invalid regex pattern")
        assert len(await between.names()) == 2
        assert edit_deny(["^never$"], []) == ""
        assert await between.names() == ["read_file"]
