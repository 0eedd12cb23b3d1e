"""What a fresh connection says about the upstream: reached, lost, or nothing."""

from __future__ import annotations

import errno
import socket

import pytest

from mcp_tool_filter.adapters.sockets.connect import Reach, probe, reach_in
from mcp_tool_filter.adapters.sockets.tls import make_tls_context
from mcp_tool_filter.http.origin import Origin
from tests.raw_upstream import Peer, free_port, raw_upstream


async def test_an_upstream_that_listens_is_reachable() -> None:
    async with raw_upstream(Peer.left) as upstream:
        there = await probe(Origin("127.0.0.1", upstream.port, tls=False), None, 5.0)
    found = [there, await probe(Origin("127.0.0.1", free_port(), tls=False), None, 5.0)]
    assert found == [Reach.REACHED, Reach.LOST]


async def test_a_listener_that_never_shakes_hands_is_lost() -> None:
    async with raw_upstream(Peer.left) as upstream:
        origin = Origin("127.0.0.1", upstream.port, tls=True)
        found = await probe(origin, make_tls_context(), timeout=0.05)
    assert found is Reach.LOST


@pytest.mark.parametrize(
    ("errors", "reach"),
    [
        ([OSError(errno.EMFILE, "")], Reach.UNKNOWN),
        ([OSError(errno.ENFILE, ""), OSError(errno.ENETUNREACH, "")], Reach.UNKNOWN),
        ([OSError(errno.EHOSTUNREACH, "")], Reach.DOUBTFUL),
        ([ConnectionResetError(errno.ECONNRESET, "")], Reach.DOUBTFUL),
        ([socket.gaierror(socket.EAI_AGAIN, "")], Reach.DOUBTFUL),
        ([TimeoutError()], Reach.LOST),
        ([OSError(errno.ENETUNREACH, ""), OSError(errno.ECONNREFUSED, "")], Reach.LOST),
    ],
)
def test_errors_of_this_machine_say_nothing_about_the_upstream(
    errors: list[Exception], reach: Reach
) -> None:
    assert reach_in(errors) is reach
