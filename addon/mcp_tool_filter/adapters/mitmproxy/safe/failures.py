"""Why a client cannot have an answer, and what it gets instead of mitmproxy's HTML page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.layers.http._events import ErrorCode, ResponseProtocolError


class Failure(StrEnum):
    """Why a client cannot have the answer it waits for."""

    CONNECT_FAILED = "connect-failed"
    """The upstream could not be reached, or TLS with it not be agreed on."""
    LOST = "lost"
    """The upstream hung up, or reset, before its answer was complete."""
    MALFORMED = "malformed"
    """The upstream sent what is not HTTP."""
    REQUEST_MALFORMED = "request-malformed"
    """The client's headers could be read in two ways."""
    REQUEST_TOO_LARGE = "request-too-large"
    RESPONSE_TOO_LARGE = "response-too-large"
    OVER_BUDGET = "over-budget"
    """All clients together hold more than there is memory for, and this one holds most."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """What a client gets when there will be no (further) answer from the upstream."""

    response: Response
    """The whole answer, if the client has not seen a status yet."""
    last: bytes = b""
    """The end of the stream, if one is under way."""


type ErrorAnswers = Callable[[HTTPFlow, Failure], ErrorAnswer | None]


def _mitmproxys_own(_flow: HTTPFlow, _failure: Failure) -> ErrorAnswer | None:
    return None


_answers: ErrorAnswers = _mitmproxys_own


def install_error_answers(answers: ErrorAnswers) -> None:
    """Ask ``answers`` whenever mitmproxy would send its own error; None leaves it at that."""
    global _answers
    _answers = answers


def answer_to(flow: HTTPFlow, failure: Failure) -> ErrorAnswer | None:
    """Return what a client gets; None if it gets what mitmproxy sends."""
    return _answers(flow, failure)


def failure_in(error: ResponseProtocolError) -> Failure | None:
    """What has failed; None when it is the client who left, or an addon that wants it so."""
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
    # mitmproxy has one code for all of it, and h11 and h2 one exception.
    if "peer closed connection" in message:
        return False
    return message.startswith(
        ("Cannot parse HTTP response", "HTTP/1 protocol error", "HTTP/2 protocol error")
    )
