"""Waiting requests get an error when the upstream is lost; and what is no loss."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.mitmproxy.filtered import (
    call,
    filtered,
    legacy_upstream,
    lost,
)
from tests.mcp_upstream import RESULT
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer


class TestLosses:
    async def test_each_waiting_request_on_a_stream_gets_an_error_event(
        self, tmp_path: Path
    ) -> None:
        async with filtered(tmp_path, respond=legacy_upstream, fail_fast=["false"]) as between:
            async with raw_client(between.port) as poster:
                await between.client.say(get(path="/sse"))
                await between.client.head()
                await between.client.chunk()
                for id in ("1", "2"):
                    body = call("read_file", id=id)
                    await poster.ask(post(body, path="/messages?session=1"))
            await between.upstream.raw.stop()
            heard, clean = await between.client.rest_of_chunks()
            assert clean
            assert heard == b"".join(b"data: " + lost(id) + b"\n\n" for id in ("1", "2"))

    async def test_a_closed_idle_connection_is_no_loss(self, tmp_path: Path) -> None:
        """The upstream may close a quiet connection just as the next request is under way."""

        async def respond(request: RawRequest, peer: Peer) -> None:
            if len(peer.requests) > 1:
                peer.close()
            else:
                await peer.say(answer(RESULT))

        async with filtered(tmp_path, respond=respond) as between:
            assert (await between.ask(call("read_file"))).body == RESULT
            assert (await between.ask(call("read_file"))).body == lost("1")
            async with raw_client(between.port) as client:
                assert (await client.ask(post(call("read_file")))).body == RESULT
