"""Asking for the tool list as a certain client would."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.upstream.as_client import AskedBy, fetch_as_client
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.policy.effects import CannotList
from tests.adapters.upstream.mcp_script import (
    Legacy,
    dialogue,
    message_in,
    refusing,
    result,
    target,
    tool_list,
)
from tests.raw_upstream import RawRequest, Script, answer, raw_upstream

HEADERS = (
    (b"Host", b"filter.example"),
    (b"Content-Length", b"99"),
    (b"Mcp-Session-Id", b"s1"),
    (b"Authorization", b"Bearer ann"),
    (b"X-Key", b"theirs"),
)
ASKED_BY = AskedBy(Head("POST", "/mcp?user=ann", HEADERS), headers=(("X-Key", "ours"),))


def pages(*following: str | None) -> Script:
    """Answer with one tool a page, which names the next cursor."""
    left = iter(following)

    def listed(request: RawRequest) -> bytes:
        return answer(result(request, tool_list("a", next_cursor=next(left))))

    return dialogue(listed)


async def problem(script: Script) -> str:
    async with raw_upstream(script) as upstream:
        with pytest.raises(CannotList) as caught:
            await fetch_as_client(target(upstream.url), ASKED_BY)
    return str(caught.value)


async def test_the_list_is_fetched_with_the_clients_headers() -> None:
    async with raw_upstream(pages(None)) as upstream:
        await fetch_as_client(target(upstream.url), ASKED_BY)
    [request] = upstream.requests
    assert request.line == "POST /mcp?user=ann HTTP/1.1"
    assert request.all("authorization") == ["Bearer ann"]
    assert request.all("mcp-session-id") == ["s1"]
    assert request.all("x-key") == ["ours"]
    assert request.all("host") == [upstream.url.removeprefix("http://")]
    assert request.all("content-length") == [str(len(request.body))]
    assert message_in(request)["id"] >= 2**52  # no id of a client in the same session


async def test_all_pages_are_fetched() -> None:
    async with raw_upstream(pages("1", "2", None)) as upstream:
        assert len(await fetch_as_client(target(upstream.url), ASKED_BY)) == 3
    cursors = [message_in(request)["params"].get("cursor") for request in upstream.requests]
    assert cursors == [None, "1", "2"]


async def test_client_information_in_a_request_is_sent_too() -> None:
    meta = '{"io.modelcontextprotocol/clientInfo":{"name":"x"},"progressToken":1}'
    asked_by = AskedBy(ASKED_BY.head, meta=meta)
    async with raw_upstream(pages(None)) as upstream:
        await fetch_as_client(target(upstream.url), asked_by)
    params = message_in(upstream.requests[0])["params"]
    assert params == {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": "x"}}}


@pytest.mark.parametrize(
    ("meta", "sent"),
    [
        ("null", b"{}"),
        ("[]", b"{}"),
        ('"x"', b"{}"),
        ('{"x":1}', b"{}"),
        *(
            (f'{{"x":2, "io.modelcontextprotocol/a": {value}}}',
             b'{"_meta":{"io.modelcontextprotocol/a": %b}}' % value.encode())
            for value in ("1" * 4000, "1e999", "1.50", "18446744073709551616", '"\\ud800"', "null")
        ),
    ],
)  # fmt: skip
async def test_what_a_client_says_of_itself_is_sent_as_it_was_written(
    meta: str, sent: bytes
) -> None:
    """A fetch that fails over strange JSON would fail the client's call, too."""
    async with raw_upstream(pages(None)) as upstream:
        await fetch_as_client(target(upstream.url), AskedBy(ASKED_BY.head, meta=meta))
    assert upstream.requests[0].body.endswith(b'"params":' + sent + b"}")


async def test_in_the_older_transport_the_list_comes_on_a_stream_of_our_own() -> None:
    """On the client's stream it would be an answer to nobody."""
    legacy = Legacy(tools_list=tool_list("of_ann"))
    head = Head("POST", "/messages?id=7", (*HEADERS, (b"Mcp-Protocol-Version", b"2024-11-05")))
    asked_by = AskedBy(head, page="/sse", revision="2024-11-05", capabilities='{"roots":{}}\n"x":1')
    async with raw_upstream(legacy) as upstream:
        [page] = await fetch_as_client(target(upstream.url), asked_by)
    assert b"of_ann" in page
    stream, hello, *others = upstream.requests
    assert stream.line == "GET /sse HTTP/1.1"
    assert {one.line for one in (hello, *others)} == {"POST /messages?id=1 HTTP/1.1"}
    for request in upstream.requests:
        assert request.all("authorization") == ["Bearer ann"]
        assert len(request.all("mcp-protocol-version")) <= 1
    said = message_in(hello)["params"]
    assert (said["protocolVersion"], said["capabilities"]) == ("2024-11-05", {"roots": {}})


@pytest.mark.parametrize(
    ("status", "headers", "is_refusal"),
    [
        ("401 Unauthorized", HEADERS, True),
        ("404 Not Found", HEADERS, True),
        ("404 Not Found", (), False),
        ("403 Forbidden", HEADERS, False),
        ("403 Forbidden\r\nWWW-Authenticate: Bearer", HEADERS, True),
        ("500 Internal Server Error", HEADERS, False),
    ],
)
async def test_a_refused_client_is_told_from_a_refused_list(
    status: str, headers: tuple[tuple[bytes, bytes], ...], is_refusal: bool
) -> None:
    """The client's own request then gets an answer that says what to do."""
    async with raw_upstream(refusing(status)) as upstream:
        with pytest.raises(CannotList) as caught:
            await fetch_as_client(target(upstream.url), AskedBy(Head("POST", "/mcp", headers)))
    assert caught.value.is_refusal is is_refusal


async def test_a_failed_fetch_has_a_reason() -> None:
    assert await problem(pages("1", "1")) == 'The tool list never ends: it repeats the cursor "1"'
    assert "HTTP 403 Forbidden" in await problem(refusing("403 Forbidden"))
