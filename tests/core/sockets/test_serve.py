"""What the launcher's host does by itself, beside what all hosts do (``tests/attacks``)."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.process.limits import most_clients
from mcp_tool_filter.core.sockets.serve import (
    _LINGER,
    _MOST_RECORDS,
    UpstreamConnection,
    bind,
)
from tests.attacks.stage import PING, Link, answering, raised_on_sockets
from tests.cli.commands.proxying import CALL, LIST, TOOLS, ask, names_in, serving, silent
from tests.filtered import legacy_upstream
from tests.mcp_upstream import RESULT, McpUpstream, Respond, mcp_upstream
from tests.raw_client import MCP_HEADERS, RawClient, get, post, raw_client, trusting
from tests.raw_upstream import SSE_HEAD, TIMEOUT, Peer, RawRequest, answer, chunk, until
from tests.served import RunningSockets, served

READ = CALL % (1, b"read_file")


@asynccontextmanager
async def filtered(
    respond: Respond | None = None, **options: Any
) -> AsyncIterator[tuple[McpUpstream, RunningSockets, RawClient]]:
    """Serve an upstream in this process."""
    given = {"endpoint": "/mcp", "deny": ["^rm_"], **options}
    async with (
        mcp_upstream(tools=TOOLS, respond=respond) as upstream,
        served(to=upstream.url, **given) as running,
        raw_client(running.port) as client,
    ):
        yield upstream, running, client


async def test_mitmproxy_is_not_imported_to_filter_a_url(tmp_path: Path) -> None:
    """It would double the memory and the time to start."""
    imports = {"PYTHONPROFILEIMPORTTIME": "1"}
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        serving(upstream, tmp_path, environment=imports) as it,
    ):
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        assert (await ask(it.port, READ)).status == 200
        assert " mcp_tool_filter.core.sockets.serve\n" in it.stderr
        assert not re.search(r"\| +(mitmproxy|wsproto|h2|h11|yaml)\b", it.stderr)


def test_a_name_with_several_addresses_is_served_on_all_of_them() -> None:
    doors = bind("localhost", 0)
    try:
        ports = {door.getsockname()[1] for door in doors}
        addresses = {door.getsockname()[0] for door in doors}
        known = socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
        assert addresses == {address[0] for *_, address in known}
        assert len(ports) == 1
        with pytest.raises(StartError, match="Cannot listen on localhost"):
            bind("localhost", ports.pop())
    finally:
        for door in doors:
            door.close()


LEAVING = (
    b'{"jsonrpc":"2.0","id":"%d","error":{"code":-32603,"message":"The proxy is shutting down"}}'
)


async def test_open_calls_are_answered_before_the_process_ends(tmp_path: Path) -> None:
    """They get some time; what is not answered by then gets an error, and streams just end."""
    may_answer = asyncio.Event()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if "/sse" in request.line or "/messages" in request.line:
            return await legacy_upstream(request, peer)
        if b"subscriptions/listen" in request.body:
            await peer.say(SSE_HEAD + chunk(b": quiet\n\n"))
        elif b'"1"' in request.body:
            await may_answer.wait()
            await peer.say(answer(RESULT.replace(b'"id":1', b'"id":"1"')))
        return await peer.left()

    listen = b'{"jsonrpc":"2.0","id":"9","method":"subscriptions/listen","params":{}}'
    async with (
        mcp_upstream(tools=TOOLS, respond=respond) as upstream,
        serving(upstream, tmp_path) as it,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(raw_client(it.port)) for _ in range(5)]
        finishing, hanging, listening, legacy, idle = clients
        await finishing.say(post(READ))
        await hanging.say(post(CALL % (2, b"read_file")))
        await listening.say(post(listen))
        await listening.head()
        await legacy.say(get(path="/sse"))
        await legacy.until(b"session=1")
        await idle.ask(post(CALL % (3, b"read_file"), path="/messages?session=1"))
        assert names_in(await idle.ask(post(LIST))) == ["read_file"]
        await until(lambda: len(upstream.of("tools/call")) >= 3)
        it.interrupt(signal.SIGTERM)
        assert await idle.rest() == b""  # no more requests are taken
        may_answer.set()
        answered = await finishing.answer()
        assert (answered.status, b"connection: close" in answered.head) == (200, True)
        assert b'"result"' in answered.body
        refused = await hanging.answer()
        assert (refused.status, refused.body) == (200, LEAVING % 2)
        assert LEAVING % 3 in await legacy.rest()
        assert (await listening.rest()).endswith(b"0\r\n\r\n")
        assert await it.exit_code() == 0


async def test_a_surplus_client_gets_one_error_and_a_seat_when_there_is_one() -> None:
    async with filtered(silent, max_clients="1") as (upstream, running, busy):
        await busy.say(post(READ))
        await until(lambda: upstream.of("tools/call"))
        refused = await ask(running.port, LIST)
        assert refused.status == 503
        assert json.loads(refused.body)["error"]["message"] == "Too many clients are connected"
        busy.abort()
        await until(lambda: not running.proxy.exchanges)
        assert names_in(await ask(running.port, LIST)) == ["read_file"]
        said = [record.getMessage() for record in running.said]
        assert sum("more clients are refused" in text for text in said) == 1
    assert most_clients(1024) == 438


async def test_a_client_that_resets_its_connection_is_no_error_of_ours() -> None:
    async with filtered() as (_, running, client):
        await client.ask(post(LIST))
        theirs = socket.create_connection(("127.0.0.1", running.port))
        await until(lambda: len(running.server.all) == 2)
        own = theirs.getsockname()[1]
        [open_one] = [one for one in running.server.all if one.port == own]
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        open_one.close()  # before asyncio has seen the reset
        await until(lambda: len(running.server.all) == 1)


async def test_a_client_may_read_its_last_answer_slowly(tmp_path: Path) -> None:
    long = b'{"jsonrpc":"2.0","id":1,"result":{"x":"%b"}}' % (b"x" * 8_000_000)

    async def at_length(_request: RawRequest, link: Link) -> None:
        await link.say(answer(long))

    async with raised_on_sockets(tmp_path) as (upstream, it), raw_client(it.port) as client:
        upstream.respond = at_length
        await client.say(post(PING, headers=MCP_HEADERS + b"Connection: close\r\n"))
        await client.head()
        await asyncio.sleep(3 * _LINGER / 2)
        assert await client.rest() == long


async def test_a_connection_whose_request_was_not_read_is_not_used_again(tmp_path: Path) -> None:
    """Its upstream has answered early; what followed the unread body would be lost."""
    async with raised_on_sockets(tmp_path) as (upstream, it):
        reading, over = upstream._body, asyncio.Event()

        async def early(link: Link, head: bytes, start: int) -> tuple[bytes, int]:
            if b"X-Early" not in head:
                return await reading(link, head, start)
            await link.say(answer(RESULT))
            await over.wait()
            raise ConnectionError

        upstream._body = early  # type: ignore[method-assign]
        call = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"x":"%b"}}' % (b"x" * 8_000_000)
        async with raw_client(it.port) as client:
            said = await client.ask(post(call, headers=MCP_HEADERS + b"X-Early: 1\r\n"))
            assert said.body == RESULT
            assert (await client.ask(post(PING))).body == RESULT
        assert len(upstream.links) == 2
        over.set()


async def test_idle_connections_make_room_for_new_ones(tmp_path: Path) -> None:
    """A call is not sent on a connection that may be about to close, but it needs one."""
    async with raised_on_sockets(tmp_path) as (upstream, it), AsyncExitStack() as stack:
        enter = stack.enter_async_context
        room = it.server.room
        (pool,) = room.pools
        room.descriptors = 0  # as few connections as there may be
        together = asyncio.Barrier(room.most)

        async def at_once(_request: RawRequest, link: Link) -> None:
            await together.wait()
            await link.say(answer(RESULT))

        upstream.respond = at_once
        clients = [await enter(raw_client(it.port)) for _ in range(room.most)]
        await asyncio.gather(*(one.ask(post(PING)) for one in clients))
        assert len(pool.idle) == room.most
        for one in pool.idle:
            one.since -= 10.0
        upstream.respond = answering
        assert (await clients[0].ask(post(READ))).body == RESULT
        assert len(pool.all) == room.most


async def test_small_pieces_of_an_answer_leave_at_once() -> None:
    """The system would hold each for 40 ms, to join it with the next."""
    async with filtered() as (_, running, client):
        await client.ask(post(READ))
        (pool,) = running.server.room.pools
        ours = [one._transport for one in (*pool.all, *running.server.all)]
        sockets = [one.get_extra_info("socket") for one in ours]
        assert len(sockets) == 2
        for one in sockets:
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_what_comes_together_leaves_together() -> None:
    """Head, event and end of an answer are one write: each takes as long as judging the event."""

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(b"data: " + RESULT + b"\n\n") + b"0\r\n\r\n")

    async with filtered(respond) as (_, running, client):
        await client.ask(post(READ))
        (ours,) = running.server.all
        before = _segments_of(ours._transport.get_extra_info("socket"))
        assert RESULT in (await client.ask(post(READ))).body
        assert _segments_of(ours._transport.get_extra_info("socket")) == before + 1


def _segments_of(sock: socket.socket) -> int:
    """How many TCP segments with data the system has sent (Linux: ``tcpi_data_segs_out``)."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return int(struct.unpack_from("I", info, 156)[0])


async def test_nothing_is_said_of_writing_to_a_client_that_has_left(tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream, serving(upstream, tmp_path) as it:
        for _ in range(5):
            async with raw_client(it.port) as client:
                client.writer.write(post(CALL % (1, b"rm_file")) * 3000)
                await client.head()
                client.abort()
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        assert "socket.send" not in it.stderr


@pytest.mark.parametrize("scheme", [b"NTLM", b"negotiate"])
async def test_nobody_else_uses_a_connection_with_a_login(scheme: bytes, tmp_path: Path) -> None:
    """Such a login counts for the connection: others would act in the client's name."""
    asked: list[Link] = []

    async def noting(_request: RawRequest, link: Link) -> None:
        asked.append(link)
        await link.say(answer(RESULT))

    async with raised_on_sockets(tmp_path) as (upstream, it), raw_client(it.port) as other:
        upstream.respond = noting
        login = MCP_HEADERS + b"Authorization: %b TlRMTVNTUAAB\r\n" % scheme
        async with raw_client(it.port) as client:
            assert (await client.ask(post(PING, headers=login))).body == RESULT
            for asking in (other, client, other):
                assert (await asking.ask(post(PING))).body == RESULT
        first, second, third, fourth = asked
        assert first is third is not second is fourth
        await asyncio.wait_for(first.over.wait(), TIMEOUT)
        assert not second.over.is_set()


async def test_nothing_is_written_to_a_lost_upstream(caplog: pytest.LogCaptureFixture) -> None:
    """As when a WebSocket's client has sent many messages at once."""
    pool: Any = SimpleNamespace(reads=None, all=set(), lost=lambda _one: None)
    with socket.create_server(("127.0.0.1", 0)) as door:
        _, one = await asyncio.get_running_loop().create_connection(
            lambda: UpstreamConnection(pool), *door.getsockname()
        )
        one.speaks.abort()
        for _ in range(20):
            one.speaks.write(b"x")
    assert not caplog.records


async def test_a_piece_that_is_sent_in_part_counts_as_a_whole() -> None:
    """asyncio keeps all of it; so 1500 clients that do not read would hold more than we count."""
    size = 200_000

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(b": hello\n\n"))
        for _ in range(100):
            await peer.say(chunk(b": " + b"x" * size + b"\n\n"))
        await peer.left()

    async with filtered(respond) as (_, it, client):
        await client.say(get())
        await client.until(b"hello")
        [connection] = [one for one in it.server.all if one.speaks.exchange is not None]
        await until(lambda: connection.unsent)
        assert connection.held_bytes >= connection.unsent + 2 * 64 * 1024


async def test_tiny_records_of_tls_are_read_in_turns(tmp_path: Path) -> None:
    """One may hold a single byte: a read of 256 KB brings thousands of them."""
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        served(to=upstream.url, home=tmp_path, endpoint="/mcp") as it,
        raw_client(it.port, tls=trusting()) as client,
    ):
        most = 0
        give = it.server.reads.give

        def counted(speaks: Any, data: bytes) -> None:
            nonlocal most
            most = max(most, len(data))
            give(speaks, data)

        it.server.reads.give = counted  # type: ignore[method-assign]
        for at in post(READ + b" " * 5000):
            client.writer.write(bytes([at]))  # each is a record
        assert (await client.answer()).body == RESULT
        assert most <= _MOST_RECORDS


async def test_clients_that_want_tls_get_it_or_one_line_is_logged() -> None:
    """Where no certificate can be made, each of them wrote an internal error to the log."""
    async with filtered() as (_, running, client):  # with no place for a certificate
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(b"\x16\x03\x01\x02\x00\x01")
            assert await reader.read() == b""
            writer.close()
        assert (await client.ask(post(LIST))).status == 200
        said = [one for one in running.said if "TLS" in one.getMessage()]
    assert [one.levelname for one in said if one.levelname != "INFO"] == ["WARNING"]
    assert running.errors() == []
