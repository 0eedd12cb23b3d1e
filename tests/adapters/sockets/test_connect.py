"""What people are told when a connection fails."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from mcp_tool_filter.adapters.sockets.connect import (
    LoginNeeded,
    Reach,
    probe,
    reach_in,
    why,
    why_none,
)
from mcp_tool_filter.adapters.sockets.tls import make_tls_context
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.http.urls import Origin, parse_origin
from tests.raw_upstream import Peer, free_port, raw_upstream

ORIGIN = parse_origin("http://upstream.example:3000")


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] long words")
    error.verify_message = "self-signed certificate"
    return error


def tls_error() -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] long words (_ssl.c:1000)")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (certificate_error(), "certificate verify failed: self-signed certificate"),
        (tls_error(), "TLS error: wrong version number"),
        (socket.gaierror(-2, "Name or service not known"), "Host not found: upstream.example"),
        (ConnectionRefusedError(111, "x"), "Connection refused"),
        (ConnectionResetError(104, "x"), "Connection reset by upstream"),
        (BrokenPipeError(32, "x"), "Connection reset by upstream"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (OSError(), "OSError"),
    ],
)
def test_a_failure_is_described_in_a_few_words(error: Exception, said: str) -> None:
    assert why(error, ORIGIN) == said


def test_the_most_telling_error_of_several_addresses_is_shown() -> None:
    errors = [OSError(101, "Network is unreachable"), ConnectionRefusedError(), OSError(1, "x")]
    assert why_none(errors, ORIGIN) == "Connection refused"
    assert why_none([*errors, tls_error()], ORIGIN) == "TLS error: wrong version number"


def test_a_missing_login_says_what_to_type() -> None:
    assert str(LoginNeeded(StartError("Not logged in", why="Type: x"))) == "Not logged in. Type: x"


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
