"""Our own answers instead of an authorization server's."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mcp_tool_filter.adapters.oauth.web import WebAnswer, WebFailed
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.login_through.requests import check_answer


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """An answer of ours instead of the authorization server's."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def passed_on(got: WebAnswer, body: bytes) -> LoginAnswer:
    if 300 <= got.status < 400:
        raise WebFailed("a redirect that is not allowed here")
    try:
        check_answer(got.body)
    except ProtocolError as error:
        raise WebFailed(str(error)) from None
    return json_answer(got.status, body)


def json_answer(status: int, body: bytes) -> LoginAnswer:
    return LoginAnswer(
        status, body, (("content-type", "application/json"), ("cache-control", "no-store"))
    )


def redirect_to(url: str) -> LoginAnswer:
    headers = (("location", url), ("cache-control", "no-store"), ("referrer-policy", "no-referrer"))
    return LoginAnswer(302, headers=headers)


def error_answer(status: int, error: str, description: str) -> LoginAnswer:
    said = {"error": error, "error_description": description}
    return json_answer(status, json.dumps(said).encode())


NOT_FOUND = error_answer(404, "not_found", "There is nothing here")
