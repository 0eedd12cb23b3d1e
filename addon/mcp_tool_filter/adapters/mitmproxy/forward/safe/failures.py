"""Why a client gets no answer of the upstream, and what it gets instead of mitmproxy's HTML
page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.layers.http._events import ErrorCode, ResponseProtocolError


class Failure(StrEnum):
    """Why a client cannot get the answer that it waits for."""

    CONNECT_FAILED = "connect-failed"
    """The upstream could not be reached, or TLS with it failed."""
    LOST = "lost"
    """The upstream disconnected before its answer was complete."""
    MALFORMED = "malformed"
    """The upstream sent something that is not HTTP."""
    REQUEST_MALFORMED = "request-malformed"
    """The client's headers could be read in two ways."""
    REQUEST_TOO_LARGE = "request-too-large"
    RESPONSE_TOO_LARGE = "response-too-large"
    OVER_BUDGET = "over-budget"
    """All clients together hold more memory than allowed, and this one holds the most."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """What a client gets if there is no (further) answer from the upstream."""

    response: Response
    """The complete answer, if no status has been sent yet."""
    last: bytes = b""
    """The last bytes of a stream that is under way."""


type ErrorAnswers = Callable[[HTTPFlow, Failure], ErrorAnswer | None]


def _mitmproxys_own(_flow: HTTPFlow, _failure: Failure) -> ErrorAnswer | None:
    return None


_answers: ErrorAnswers = _mitmproxys_own


def install_error_answers(answers: ErrorAnswers) -> None:
    """Call ``answers`` whenever mitmproxy would send its own error.

    If that returns None, it is sent.
    """
    global _answers
    _answers = answers


def answer_to(flow: HTTPFlow, failure: Failure) -> ErrorAnswer | None:
    """Return the answer for a client; None to send mitmproxy's own."""
    return _answers(flow, failure)


def failure_in(error: ResponseProtocolError) -> Failure | None:
    """Return what has failed; None if the client left, or an addon caused it."""
    match error.code:
        case ErrorCode.CONNECT_FAILED:
            return Failure.CONNECT_FAILED
        case ErrorCode.REQUEST_TOO_LARGE:
            return Failure.REQUEST_TOO_LARGE
        case ErrorCode.RESPONSE_TOO_LARGE:
            return Failure.RESPONSE_TOO_LARGE
        case ErrorCode.REQUEST_VALIDATION_FAILED | ErrorCode.DESTINATION_UNKNOWN:
            return Failure.REQUEST_MALFORMED
        case ErrorCode.RESPONSE_VALIDATION_FAILED:
            return Failure.MALFORMED
        case ErrorCode.GENERIC_SERVER_ERROR | ErrorCode.CANCEL | ErrorCode.HTTP_1_1_REQUIRED:
            return Failure.MALFORMED if _is_no_http(error.message) else Failure.LOST
        case _:
            return None


def is_interim(response: Response) -> bool:
    status: int = response.status_code
    return 100 <= status < 200 and status != 101


def _is_no_http(message: str) -> bool:
    # mitmproxy has one code for all such errors, and h11 and h2 one exception.
    if "peer closed connection" in message:
        return False
    return message.startswith(
        ("Cannot parse HTTP response", "HTTP/1 protocol error", "HTTP/2 protocol error")
    )
