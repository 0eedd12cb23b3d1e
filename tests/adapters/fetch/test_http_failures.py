"""What people are told when a connection fails."""

from __future__ import annotations

import socket
import ssl

import pytest

from mcp_tool_filter.adapters.sockets.connect import LoginNeeded, why, why_none
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.http.origin import parse_origin

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
