"""Bytes in, filtered bytes out: one event stream from the upstream to a client."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import INVALID_ANSWER, Judged, Observer
from mcp_tool_filter.core.http.event_stream import EventStream
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import INTERNAL_ERROR, render_error
from mcp_tool_filter.core.messages.sse import render_event
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Rewrite, Verdict, Why
from tests.make import answering, asking, chunks, definition, event, listing, policy
from tests.rows import each_row

BOTH, READ_ONLY = listing("read", "rm"), listing("read")
RM = definition("rm").decode()


def stream_for(
    *ids: str,
    limits: Limits | None = None,
    observe: Observer | None = None,
    on_endpoint: Callable[[str], str | None] = lambda url: None,
) -> EventStream:
    """Open a stream on which these ids wait."""
    in_force = policy("read", "rm", deny="^rm", limits=limits)
    conversation = Conversation(in_force)
    for id in ids:
        conversation.from_client(asking("ping", id=id))
    if observe:
        in_force.observe = observe
    return EventStream(conversation, on_endpoint=on_endpoint)


def through(stream: bytes, *ids: str, sizes: tuple[int, ...] = (1 << 20,)) -> bytes:
    """Send a whole stream through a filter, for which these ids wait."""
    filtered = stream_for(*ids)
    said = [filtered.feed(chunk) for chunk in chunks(stream, sizes)]
    return b"".join(said) + (filtered.finish() or b"")


def error(id: str) -> bytes:
    return render_event(render_error(id, INTERNAL_ERROR, INVALID_ANSWER))


@each_row("stream", [
    b": ping\n\n", b"\n\n\r\n", b"id: 1\ndata:\n\n", b"retry: 3000\n\n",
    b"event: ping\ndata: {}\n\n", b'event: heartbeat\ndata: {"ts":1}\n\n',
    b"event: keepalive\ndata: now\n\n",
    b"id: 7\r\nevent: message\r\ndata: " + READ_ONLY + b"\r\nretry: 1\r\n\r\n",
    b"data:" + answering('{ "b" : 1.00 ,"a":"\\u00e9"}') + b"\r\r",
    'data: {"jsonrpc":"2.0","method":"x","params":{"t":"\u2028\u0085"}}\n\n'.encode(),
    b'data: {"jsonrpc":"2.0",\ndata: "method":"x"}\n\n',
    b"\xef\xbb\xbfdata: " + asking("roots/list", id='"s"') + b"\n\n",
    event(answering('{"content":[],"structuredContent":{"tools":[' + RM + "]}}")),
    b"data: [" + answering("{}") + b"]\n\n",
    b"data: " + READ_ONLY, b"data: " + READ_ONLY + b"\n", b"id: 5",
])  # fmt: skip
def test_an_honest_stream_passes_unchanged(stream: bytes) -> None:
    assert through(stream) == stream


FRAMES = [
    b"data: %s\n\n", b"data:%s\n\n", b"data: %s\r\r", b"data: %s\r\n\r\n",
    b"\xef\xbb\xbfdata: %s\n\n", b"\n\rdata: %s\n\n",
    b"id: 1\nevent: message\ndata: %s\nretry: 5\n\n",
    b"event: message\r\n: c\r\ndata: %s\r\nid: 1\r\n\r\n",
    b"event: other\ndata: %s\n\n", b"event:\ndata: %s\n\n", b": c\rdata: %s\r\n\n", b"data: %s",
    b"data: %s\n", b"data:\ndata: %s\n\n", b"data: [\ndata: %s\ndata: ]\n\n",
    b"retry: x\nunknown: y\ndata: %s\n\n",
]  # fmt: skip


@each_row("frame", FRAMES)
@each_row("size", [1, 2, 7, 4096])
def test_a_denied_tool_is_hidden_in_every_framing(frame: bytes, size: int) -> None:
    assert b'"rm"' not in through(frame % BOTH, sizes=(size,))
    assert b'"read"' in through(frame % BOTH, sizes=(size,))


def test_an_event_keeps_its_further_fields() -> None:
    frame = b"id: 1\r\ndata: %s\r\nretry: 5\r\n\r\n"
    assert through(frame % BOTH) == frame % READ_ONLY


BEFORE_A_LIST = [
    b"data: x", b"data: \xef\xbb\xbf", b"Data: ", b" data: ", b"data : ", b"id: ", b": ", b"x: ",
    b"event: ", b"\xef\xbb\xbf\xef\xbb\xbfdata: ", b": c\xe2\x80\xa8data: ", b"id: 1\xc2\x85data: ",
    b"id: 1\x0bdata: ", b"event: a\x1cdata: ", b"event: other\ndata: text ",
    b"event: message\nevent: other\ndata: text ", b"data: " + BOTH, b"data: " + BOTH + b"\ndata: ",
    b"data: " + READ_ONLY + b"\n\xef\xbb\xbfdata: ",
    b"data: " + READ_ONLY + b"\n: " + BOTH + b"\nDATA: ",
]  # fmt: skip
HIDDEN = [
    *(before + BOTH + b"\n\n" for before in BEFORE_A_LIST),
    b"data: {\ndata: " + BOTH[1:] + b"\n\n", event(BOTH[:-1]), b"data: " + BOTH[:-1],
    event(BOTH.replace(b'"rm"', b'"\\u0072m"')), event(BOTH.replace(b"tools", b"Tools")),
    event(BOTH.replace(b'{"type', b"\n\ndata: {")),
    b'event: other\ndata: {"tools":[' + RM.encode() + b"]}\n\n",
    b'event: other\ndata: {"x":{"name":"r\\u006d","inputSchema":{}}}\n\n',
]  # fmt: skip
PIECES = st.sampled_from([
    *HIDDEN, *(frame % BOTH for frame in FRAMES), event(answering("{}", id="2")),
    b": ping\n\n", b"\r", b"\n", b"\r\n", b"data", b"x", b"event: endpoint\ndata: /x\n\n",
    b"\xef\xbb\xbf", b"data: x\r\n\r\n", b": c\xe2\x80\xa8\r\n",
])  # fmt: skip
STREAMS = st.lists(PIECES, max_size=5).map(b"".join)
SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=6)


type Told = tuple[Verdict, str | None]


def judged(stream: bytes, sizes: tuple[int, ...]) -> tuple[bytes, list[Told]]:
    """Send a stream through; return what came out, and the verdicts on the way."""
    verdicts: list[Told] = []

    def note(judged: Judged) -> None:
        verdicts.append((judged.verdict, judged.exchange.method if judged.exchange else None))

    filtered = stream_for("1", "2", observe=note)
    out = [filtered.feed(chunk) for chunk in chunks(stream, sizes)]
    return b"".join(out) + (filtered.finish() or b""), verdicts


@given(stream=STREAMS, sizes=SIZES)
@example(stream=b"data: x\r\n\r\ndata: " + BOTH + b"\r\n\r\n", sizes=[1])
@settings(max_examples=150)
def test_chunk_boundaries_do_not_matter(stream: bytes, sizes: list[int]) -> None:
    assert judged(stream, tuple(sizes)) == judged(stream, (1 << 20,))


@given(stream=STREAMS | st.binary(), sizes=SIZES)
@settings(max_examples=150)
def test_no_input_raises_or_shows_a_denied_tool(stream: bytes, sizes: list[int]) -> None:
    filtered = stream_for("1")
    out = b"".join(filtered.feed(chunk) for chunk in chunks(stream, sizes))
    out += filtered.finish() or b""
    assert filtered.failure is None
    assert not any(name in out for name in (b'"rm"', b"u0072m", b"u006d"))


UNREADABLE = b'data: {"jsonrpc":"2.0","id":2,"result":{},"Result":{}}\n\n'
UNFINISHED = b"data: " + answering("{}", id="2")


@each_row(("stream", "waiting", "expected"), [
    (UNREADABLE, "12", error("2") + error("1")),  # at the end nobody else comes
    (b'data: {"id":broken}\n\n', "1", error("1")),  # nobody else waits
    (b'data: {"jsonrpc":"2.0","id":1,"res', "1", error("1")),
    (b": ping\n\n", "1", b": ping\n\n"),  # the client may resume the stream, and be answered there
    (b"data: x\n\n" + UNFINISHED, "12", UNFINISHED + b"\n\n" + error("1")),
    (b"event: endpoint\ndata: /messages\n\n", "", b""),
])  # fmt: skip
def test_a_request_whose_answer_cannot_come_gets_an_error(
    stream: bytes, waiting: str, expected: bytes
) -> None:
    assert through(stream, *waiting) == expected


LIMITS = Limits(message=300, pending=400)


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_an_event_over_the_limits_becomes_an_error_and_the_stream_goes_on(size: int) -> None:
    filtered, small = stream_for("1", "2", limits=LIMITS), event(answering("{}"))
    big = event(answering('"' + "x" * 1000 + '"', id="2"))
    out = b"".join(filtered.feed(chunk) for chunk in chunks(big + small, (size,)))
    assert out == error("2") + small


def test_an_event_over_the_message_limit_is_not_parsed() -> None:
    filtered = stream_for("1", limits=LIMITS)
    assert filtered.feed(event(answering('"' + "x" * 300 + '"'))) == error("1")


@pytest.mark.parametrize("name", [b"endpoint", b"Endpoint", b" endpoint "])
def test_an_endpoint_can_be_rewritten(name: bytes) -> None:
    filtered = stream_for(on_endpoint=lambda url: "/ours")
    said = filtered.feed(b"event: " + name + b"\r\ndata: http://evil.example/\r\n\r\n")
    assert said == b"event: " + name + b"\r\ndata: /ours\r\n\r\n"


@pytest.mark.parametrize("named", [b"htt\r\rp://evil.test/\n\n", b"htt\r", b"htt\rx\n\n"])
def test_a_carriage_return_in_an_endpoint_ends_it_for_every_reader(named: bytes) -> None:
    """A reader that knows no CR as a line's end would go on reading, and drop it from the URL."""
    filtered = stream_for(on_endpoint=lambda url: url)
    said = filtered.feed(b"event: endpoint\ndata: " + named + b"\r\n")
    assert said.startswith(b"event: endpoint\ndata: htt\n\n")


def test_a_whole_endpoint_stays_as_it_is_and_one_without_a_url_is_refused() -> None:
    filtered = stream_for(on_endpoint=lambda url: url)
    said = b"event: endpoint\r\ndata: /messages\r\n\r\n"
    assert filtered.feed(said + b"event: endpoint\n\n") == said
    assert filtered.failure is None


def test_an_internal_error_closes_the_stream() -> None:
    """mitmproxy would log the exception and send the chunk on."""
    filtered = stream_for(observe=Mock(side_effect=ZeroDivisionError))
    assert filtered.feed(b"data: " + answering("{}") + b"\n\n") == b""
    assert isinstance(filtered.failure, ZeroDivisionError)
    assert filtered.feed(b": ping\n\n") == b""
    assert filtered.finish() == b""


def test_observers_get_each_message_and_the_request_it_answers() -> None:
    stream = b"data: " + answering("{}", id="1") + b"\n\ndata: " + BOTH + b"\n\ndata: x\n\n"
    _, verdicts = judged(stream, (1 << 20,))
    first, second, third, at_the_end = verdicts
    assert first == (Forward(), "ping")
    assert isinstance(second[0], Rewrite)
    assert second[1] is None  # it was answered before
    assert isinstance(third[0], Drop)
    assert third[0].reason.why is Why.INVALID
    assert isinstance(at_the_end[0], Rewrite)  # the errors of those who still wait
