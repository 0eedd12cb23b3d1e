"""An upstream that wants a login is distinguished from one that failed."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.fetch.problems import hint_for
from mcp_tool_filter.adapters.fetch.upstream import fetch
from mcp_tool_filter.errors import FetchFailed, ListsAfterLogin
from tests.adapters.fetch.mcp_script import dialogue, refusing, target
from tests.raw_upstream import RawRequest, Script, answer, raw_upstream


async def problem(script: Script, *headers: tuple[str, str]) -> FetchFailed:
    async with raw_upstream(script) as upstream:
        with pytest.raises(FetchFailed) as caught:
            await fetch(target(upstream.url, "/mcp", headers=headers))
    return caught.value


def with_document(place: str) -> Script:
    """Refuse everything, in words that do not say how to log in, but for one document."""

    def say(request: RawRequest) -> bytes:
        if request.line.startswith(f"GET {place} "):
            return answer(b"{}", kind="application/json")
        return answer(b"", status="401 Unauthorized", kind="text/plain")

    return dialogue(say)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_challenge_says_how_to_log_in(status: str) -> None:
    found = await problem(refusing(f"{status}\r\nWWW-Authenticate: Bearer"))
    assert isinstance(found, ListsAfterLogin)
    assert found.path == "/mcp"


@pytest.mark.parametrize(
    "place",
    [
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
    ],
)
async def test_a_metadata_document_says_how_to_log_in(place: str) -> None:
    assert isinstance(await problem(with_document(place)), ListsAfterLogin)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_401_that_does_not_say_how_to_log_in_is_an_error(status: str) -> None:
    found = await problem(refusing(status))
    assert not isinstance(found, ListsAfterLogin)
    assert "the upstream wants credentials" in found.why


async def test_refused_credentials_of_ours_are_an_error() -> None:
    challenge = refusing("401 Unauthorized\r\nWWW-Authenticate: Bearer")
    found = await problem(challenge, ("Authorization", "Bearer x"))
    assert not isinstance(found, ListsAfterLogin)
    assert "does not accept the credentials" in found.why


def test_a_hint_says_what_to_do_about_tls() -> None:
    assert "--ca FILE" in (hint_for("certificate verify failed: self-signed certificate") or "")
    assert "http://" in (hint_for("TLS error: wrong version number") or "")
    assert hint_for("Connection refused") is None
