"""Server-sent events: cut as the standard says, however the network cuts them."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tool_filter.core.messages import sse
from mcp_tool_filter.core.messages.sse import (
    Event,
    EventParser,
    Oversized,
    parse_event,
    render_event,
)
from tests.make import chunks
from tests.rows import each_row

LINE_ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
LINES = st.sampled_from([
    b"", b"", b"data", b"data:", b"data: a", b"data:b", b"data:  c", b": ping", b":", b"id: 7",
    b"retry: 10", b"event: x", b"event", b"data: \xe2\x80\xa8", b"\xef\xbb\xbfdata: d", b"da",
])  # fmt: skip


def event_streams() -> st.SearchStrategy[bytes]:
    lines = st.lists(st.tuples(LINES, LINE_ENDS).map(b"".join), max_size=12).map(b"".join)
    return st.tuples(st.sampled_from([b"", b"\xef\xbb\xbf"]), lines).map(b"".join)


def parse(cut: list[bytes], *, max_pending: int = 1000) -> list[Event | Oversized]:
    parser = EventParser(max_pending=max_pending)
    events = [event for chunk in cut for event in parser.feed(chunk)]
    return [*events, Event(parser.finish(), None)]


def said(events: list[Event | Oversized]) -> list[Event | Oversized]:
    """Leave out comments and blank lines between events: they come in pieces as they come."""
    return [one for one in events if isinstance(one, Oversized) or says_something(one)]


def says_something(event: Event) -> bool:
    return event.raw.strip(b"\r\n")[:1] not in (b"", b":")


def bytes_of(events: list[Event | Oversized]) -> bytes:
    return b"".join(event.raw for event in events if isinstance(event, Event))


@given(stream=event_streams(), sizes=st.lists(st.integers(1, 7), min_size=1))
@example(stream=b"data: a\r\n\r\n: b\r\n\r\ndata: c\r\n\r\n", sizes=[1])
def test_chunk_boundaries_do_not_matter(stream: bytes, sizes: list[int]) -> None:
    assert said(parse(chunks(stream, sizes))) == said(parse([stream]))


@given(stream=event_streams(), sizes=st.lists(st.integers(1, 7), min_size=1))
def test_no_byte_is_lost(stream: bytes, sizes: list[int]) -> None:
    assert bytes_of(parse(chunks(stream, sizes))) == stream


@given(stream=event_streams(), sizes=st.lists(st.integers(1, 7), min_size=1))
@example(stream=b"\n: ping\n: ping\n\n", sizes=[1])
def test_the_length_limit_does_not_depend_on_chunks(stream: bytes, sizes: list[int]) -> None:
    finely = said(parse(chunks(stream, sizes), max_pending=9)[:-1])
    assert finely == said(parse([stream], max_pending=9)[:-1])


@each_row("end", [b"\n", b"\r", b"\r\n"])
@each_row("size", [1, 2, 3, 100])
def test_all_three_line_ends_end_a_line(end: bytes, size: int) -> None:
    stream = end.join([b"event: x", b"data: a", b"data:b", b"", b"data: c", b"", b""])
    events = said(parse(chunks(stream, [size])))
    said_in = [(one.data, one.name) for one in events if isinstance(one, Event)]
    assert said_in == [(b"a\nb", b"x"), (b"c", b"")]


@pytest.mark.parametrize(("raw", "data"), [
    (b"data: a\r\n\r", b"a"),  # it does not wait for a line feed, which may or may not follow
    (b": ping\n", None),  # a comment waits for no blank line: it keeps a quiet stream alive
    (b"data: a\n: c\ndata: b\n\n", b"a\nb"),  # a comment inside an event stays in it
])  # fmt: skip
def test_an_event_is_complete_as_soon_as_it_can_be(raw: bytes, data: bytes | None) -> None:
    assert EventParser().feed(raw) == [Event(raw, data)]


def test_a_byte_order_mark_counts_only_at_the_beginning() -> None:
    parser = EventParser()
    first = said(parser.feed(b"\xef\xbb\xbfdata: a\n\n"))
    assert first[-1] == Event(b"data: a\n\n", b"a")
    assert parser.feed(b"\xef\xbb\xbfdata: b\n\n") == [Event(b"\xef\xbb\xbfdata: b\n\n", None)]


@each_row(("raw", "data"), [
    (b"data\n\n", b""), (b"data:\n\n", b""), (b"data:a\n\n", b"a"), (b"data:  a \n\n", b" a "),
    (b"data:\ta\n\n", b"\ta"), (b"data: a:b\n\n", b"a:b"),
    (b"data: a\ndata\ndata: b\n\n", b"a\n\nb"),
    (b"data:a\ndata: b\n\n", b"a\nb"),
    (b"data: a\nid: 1\n\n", b"a"),
    (b"event: x\r\ndata: a\r\n\r", b"a"),
    (b"data: a\rdata: b\n\n", b"a\nb"),
    (b": data: a\ndata: b\n\n", b"b"),
    (b"id: data: a\n\n", None), (b"data: a", b"a"), (b"Data: a\n\n", None), (b" data: a\n\n", None),
    (b"data : a\n\n", None), (b"dataa: a\n\n", None), (b"id: 1\nretry: 2\n\n", None),
    ("data: a\u2028b\u0085c\x0bd\n\n".encode(), "a\u2028b\u0085c\x0bd".encode()),
])  # fmt: skip
def test_data_is_read_as_the_standard_says(raw: bytes, data: bytes | None) -> None:
    assert parse_event(raw).data == data


@pytest.mark.parametrize("raw", [
    "id: 1\u2028data: x\n\n".encode(),
    ": c\u0085data: x\n".encode(),
    b"retry: 1\x0bdata: x\n\n",
    b"event: message\nevent: endpoint\ndata: x\n\n",
    b"event: x\nevent\ndata: x\n\n",
])  # fmt: skip
def test_a_line_that_only_some_readers_see_is_noticed(raw: bytes) -> None:
    """httpx ended lines like ``str.splitlines``; of two names, readers take the first or last."""
    assert parse_event(raw).hides_a_line()


@pytest.mark.parametrize(
    "raw",
    ['data: {"a":"\u2028"}\n\n'.encode(), b"event: x\nevent: x\n\n", b"data: event event\n\n"],
)
def test_a_line_separator_in_a_string_is_honest(raw: bytes) -> None:
    assert not parse_event(raw).hides_a_line()


@pytest.mark.parametrize(("raw", "rewritten"), [
    (b"data: a\n\n", b"data: new\n\n"),
    (b"id: 1\r\ndata: a\r\nretry: 2\r\n\r", b"id: 1\r\ndata: new\r\nretry: 2\r\n\r"),
    (b"data: a\rdata: b\revent: x\r\r", b"data: new\revent: x\r\r"),
    (b"data: a\n: c\ndata: b\n\n", b"data: new\n: c\n\n"),
    (b"data: a", b"data: new\n"),
])  # fmt: skip
def test_replacing_data_keeps_the_other_fields(raw: bytes, rewritten: bytes) -> None:
    assert sse.with_data(parse_event(raw), b"new") == rewritten


@given(data=st.binary().filter(lambda data: b"\r" not in data))
def test_a_rendered_event_can_be_parsed(data: bytes) -> None:
    (event,) = EventParser().feed(render_event(data))
    assert isinstance(event, Event)
    assert event.data == data


def test_an_event_that_is_too_long_is_dropped_and_the_next_one_read() -> None:
    events = parse([b"data: 0123", b"456789", b"\n\ndata: x\n\n"], max_pending=9)
    assert said(events) == [Oversized(b"data: 012"), Event(b"data: x\n\n", b"x")]


def test_a_comment_that_is_too_long_does_not_drop_the_next_event() -> None:
    events = parse(chunks(b":" + b"x" * 50 + b"\ndata: x\n\n", [1]), max_pending=9)
    assert said(events) == [Oversized(b":xxxxxxxx"), Event(b"data: x\n\n", b"x")]


def test_an_event_that_is_too_long_is_neither_kept_nor_returned_at_the_end() -> None:
    parser = EventParser(max_pending=9)
    tracemalloc.start()
    parser.feed(b"data: ")
    fed = [parser.feed(bytes(100_000)) for _ in range(100)]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not any(fed)
    assert held < 1_000_000
    assert parser.finish() == b""
