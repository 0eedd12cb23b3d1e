"""HTTP/1.1 heads and bodies: what is read, what is refused, and what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.engine import wire as wires
from mcp_tool_filter.core.engine.wire import (
    END,
    AnswerHead,
    AnswerWire,
    Fault,
    RequestHead,
    RequestWire,
)
from tests.make import chunks
from tests.rows import each_row

HOST = b"Host: a\r\n"
POST = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


def read(
    wire: wires.Wire[RequestHead] | wires.Wire[AnswerHead], said: list[object] | None = None
) -> list[object]:
    """Return what a wire says until bytes are missing; pieces of a body are joined."""
    said = [] if said is None else said
    while (event := wire.next()) is not None:
        if isinstance(event, bytes) and said and isinstance(said[-1], bytes):
            said[-1] += event
        elif isinstance(event, bytes | wires.End):
            said.append(event)
        elif isinstance(event, RequestHead):
            said.append((event.method, event.target, event.fields))
        else:
            said.append((event.status, event.fields))
        if event is END:
            wire.state = "head"
    return said


REQUESTS = (
    POST + b"Content-Length: 5\r\n\r\n12345"
    b"\r\nGET /a?b HTTP/1.0\r\n\r\n"  # an empty line behind a body
    + CHUNKED + b"3;x=y\r\nabc\r\n0002 \r\nde\r\n0\r\nX-Sum: 1\r\n\r\n"
    + CHUNKED + b"0\r\n\r\n"
    + POST + b"Content-Length: 0\r\nX:\t a b \t\r\n\r\n"
)  # fmt: skip
ANSWERS = (
    OK + b"Content-Length: 2\r\nDate: x\r\n\r\nhi"
    b"HTTP/1.1 103 Early Hints\r\nLink: y\r\n\r\n"
    b"HTTP/1.1 204\r\n\r\n"
    + OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
)  # fmt: skip


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20).map(tuple))
def test_chunk_boundaries_do_not_matter(sizes: tuple[int, ...]) -> None:
    for whole, kind in ((REQUESTS, RequestWire), (ANSWERS, AnswerWire)):
        at_once, in_pieces = kind(), kind()
        at_once.receive(whole)
        said: list[object] = []
        for piece in chunks(whole, sizes):
            in_pieces.receive(piece)
            read(in_pieces, said)
        assert said == read(at_once)
        assert in_pieces.ahead == at_once.ahead == 0


def test_requests_are_read_one_after_the_other() -> None:
    wire = RequestWire()
    wire.receive(REQUESTS)
    targets = [one[1] if isinstance(one, tuple) else one for one in read(wire)]
    first, second = ["/", b"12345", END, "/a?b", END], ["/", b"abcde", END]
    assert targets == [*first, *second, "/", END, "/", END]


@each_row("raw", [
    POST.replace(b"\r\n", b"\n") + b"\n",
    *(POST + field + b"\r\n\r\n12345" for field in (
        b"X: a\n", b"X: a\rb", b"X: a\r\n b", b"X : a", b": a", b"X", b"X: \0", b"X: \x07",
        b"Content-Length: 5\r\nContent-Length: 5", b"Content-Length: 5, 5", b"Content-Length: +5",
        b"Content-Length: 0x5", b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: identity",
        b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: xchunked",
    )),
    b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /\r\n\r\n", b"POST / HTTP/1.2\r\n\r\n", b"POST / HTTP/2.0\r\n\r\n",
    b"POST / http/1.1\r\n\r\n", b"POST  / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1 \r\n\r\n",
    b"POST /\xe9 HTTP/1.1\r\n\r\n", b" POST / HTTP/1.1\r\n\r\n",
    *(CHUNKED + body for body in (
        b"x\r\n", b"-1\r\n", b"5\nabcde\r\n", b"5\r\nabcdefg", b"123456789\r\n", b"5;" * 5000,
        b"0\r\nX: a\n\r\n\r\n", b"0\r\nX : a\r\n\r\n", b"0\r\nX: a\r\n b\r\n\r\n",
    )),
])  # fmt: skip
def test_what_readers_could_read_differently_is_refused(raw: bytes) -> None:
    """At once, and also if it comes byte by byte."""
    for size in (len(raw), 1):
        wire = RequestWire()
        with pytest.raises(Fault):  # noqa: PT012
            for piece in chunks(raw, (size,)):
                wire.receive(piece)
                read(wire)


@each_row("beginning", [
    b"POST /mcp\r\n", b"G" * 65, b"\x16\x03\x01\x02\x00", b"{}", b"GET /\n", b"GET / HTTP/3",
    POST + b"X: a\n", POST + b"X: \0",
])  # fmt: skip
def test_what_cannot_become_a_request_is_refused_before_its_end(beginning: bytes) -> None:
    """Its sender may wait for an answer."""
    wire = RequestWire()
    wire.receive(beginning)
    with pytest.raises(Fault):
        wire.next()


@pytest.mark.parametrize("raw", [b"HTTP/1.1 20\r\n\r\n", b"ICY 200 OK\r\n", b"<html>", OK + b"a\n"])
def test_an_answer_that_is_not_http_is_refused(raw: bytes) -> None:
    wire = AnswerWire()
    wire.receive(raw)
    with pytest.raises(Fault):
        wire.next()


@pytest.mark.parametrize(
    "raw", [POST + b"X: " + b"x" * 65536, POST + b"X: y\r\n" * 11000, b"GET /" + b"x" * 65536]
)
def test_a_head_has_at_most_64_kilobytes(raw: bytes) -> None:
    for end in (b"", b"\r\n\r\n"):
        wire = RequestWire()
        wire.receive(raw + end)
        with pytest.raises(Fault) as fault:
            wire.next()
        assert fault.value.status == 431


@each_row("method", ["GET", "HEAD"])
@each_row("status", [200, 204, 304])
def test_some_answers_have_no_body_whatever_they_announce(method: str, status: int) -> None:
    wire = AnswerWire()
    wire.asked = method
    wire.receive(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)
    said = read(wire)
    assert (END in said) == (method == "HEAD" or status != 200)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    wire = AnswerWire()
    wire.receive(b"HTTP/1.1 200 OK\r\n\r\na")
    head = wire.next()
    assert isinstance(head, AnswerHead)
    assert not head.keeps
    assert wire.next() == b"a"
    assert wire.next() is None
    wire.eof()
    assert wire.next() is END


def head_of(wire: wires.Wire[AnswerHead], more: bytes) -> AnswerHead:
    wire.receive(OK + b"X: y\r\n" + more + b"\r\n")
    head = wire.next()
    assert isinstance(head, AnswerHead)
    wire.receive(b"x" * (head.length or 0))
    read(wire)
    return head


def test_a_repeated_head_keeps_what_was_decided_on_it() -> None:
    """Its length and date are those that came."""
    wire = AnswerWire()
    first = head_of(wire, b"Content-Length: 1\r\nDate: now\r\n")
    again = head_of(wire, b"Content-Length: 2\r\nDate: then\r\n")
    assert again.notes is first.notes
    assert (again.length, again.date) == (2, b"then")
    assert again.fields == ((b"X", b"y"), (b"Content-Length", b"2"), (b"Date", b"then"))
    assert first.fields[1:] == ((b"Content-Length", b"1"), (b"Date", b"now"))
    other = head_of(wire, b"Content-length: 2\r\nDate: then\r\n")
    assert other.notes is not first.notes


def test_what_an_exchange_does_to_its_head_does_not_change_one_that_is_repeated() -> None:
    wire = RequestWire()
    block = b"POST http://b/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1"
    for _ in range(4):
        wire.receive(block)
        head = wire.next()
        assert isinstance(head, RequestHead)
        assert (head.target, head.keeps, head.authority) == ("http://b/x", True, None)
        head.split_target()
        head.keeps = False
        assert (wire.next(), wire.next()) == (b"1", END)
        wire.state = "head"


def test_only_the_last_few_short_heads_are_remembered() -> None:
    wire = AnswerWire()
    first = head_of(wire, b"Y: 0\r\nContent-Length: 1\r\n")
    for number in range(1, 9):
        head_of(wire, b"Y: %d\r\nContent-Length: 1\r\n" % number)
    assert head_of(wire, b"Y: 0\r\nContent-Length: 1\r\n").notes is not first.notes
    long = b"Y: %b\r\nContent-Length: 1\r\n" % (b"y" * 5000)
    assert head_of(wire, long).notes is not head_of(wire, long).notes


def test_a_head_with_two_dates_is_read_anew() -> None:
    wire = AnswerWire()
    first = head_of(wire, b"Date: a\r\nDate: b\r\nContent-Length: 1\r\n")
    again = head_of(wire, b"Date: a\r\nDate: c\r\nContent-Length: 1\r\n")
    assert first.notes is not again.notes
    assert again.fields[2] == (b"Date", b"c")


@pytest.mark.parametrize(("fields", "values"), [
    (b"Date: %b\r\nContent-Length: 1\r\n", [b"\0", b"\x01", b"a\nb", b"a\r\n b"]),
    (b"Content-Length: %b\r\n", [b"+1", b"1, 1", b"", b"1\r\nContent-Length: 1"]),
])  # fmt: skip
def test_a_remembered_head_lets_no_odd_value_through(fields: bytes, values: list[bytes]) -> None:
    for value in values:
        wire = AnswerWire()
        head_of(wire, fields % b"1")
        with pytest.raises(Fault):
            head_of(wire, fields % value)


def joined(wire: wires.Wire[RequestHead] | wires.Wire[AnswerHead], data: bytes) -> list[object]:
    """Return what a wire says when bodies may be joined to their heads."""
    said: list[object] = []
    while (event := wire.next_joined(data)) is not None:
        data = b""
        if isinstance(event, bytes):
            said.append(event)
        elif isinstance(event, RequestHead | AnswerHead):
            said += [event.fields, event.length, event.is_chunked]
            if event.body is None:
                continue
            said += [event.body] if event.body else []
            said.append(END)
        if isinstance(event, wires.End) or said[-1] is END:
            said += [END] if isinstance(event, wires.End) else []
            wire.state = "head"
    whole: list[object] = []
    for one in said:
        if isinstance(one, bytes) and whole and isinstance(whole[-1], bytes):
            whole[-1] += one
        else:
            whole.append(one)
    return whole


SHORT = OK + b"Date: x\r\nContent-Length: 2\r\n\r\n"
STREAM = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@each_row("data", [
    SHORT + b"no",
    SHORT + b"n",
    SHORT + b"no" + SHORT + b"on",
    SHORT.replace(b"2", b"4") + b"none",
    SHORT.replace(b"x", b"y") + b"no",
    SHORT.replace(b"200", b"204"),
    b"\r\n" + SHORT + b"no",
    b"HTTP/1.1 103 Early Hints\r\n\r\n" + SHORT + b"no",
    STREAM + b"2\r\nno\r\n0\r\n\r\n",
    STREAM + b"0002;x=y\r\nno\r\n0\r\n\r\n",
    STREAM + b"1\r\nn\r\n1\r\no\r\n0\r\n\r\n",
    STREAM + b"7\r\nno\r\n0\r\n\r\n0\r\n\r\n",
    STREAM + b"2\r\nno\r\n0\r\nX: y\r\n\r\n",
    STREAM + b"2\r\nno\r\n0\r\n\r\n" + STREAM + b"2\r\non\r\n0\r\n\r\n",
    STREAM + b"0\r\n\r\n",
    STREAM + b"2\r\nno\r\n",
])  # fmt: skip
def test_what_comes_at_once_is_read_as_in_pieces(data: bytes) -> None:
    """Also if a wire knows the head already."""
    at_once, in_pieces = AnswerWire(), AnswerWire()
    for wire in (at_once, in_pieces):
        wire.asked = "POST"
        for _ in range(3):
            assert joined(wire, SHORT + b"ok")[-2:] == [b"ok", END]
    said: list[object] = []
    for at in range(len(data)):
        new = joined(in_pieces, data[at : at + 1])
        if new and said and isinstance(new[0], bytes) and isinstance(last := said[-1], bytes):
            said[-1] = last + new[0]
            new = new[1:]
        said += new
    assert joined(at_once, data) == said
    assert at_once.ahead == in_pieces.ahead


def test_a_known_head_has_no_body_after_head() -> None:
    wire = AnswerWire()
    for method, has_body in (("POST", True), ("POST", True), ("POST", True), ("HEAD", False)):
        wire.asked = method
        said = joined(wire, SHORT + (b"ok" if has_body else b""))
        assert (b"ok" in said) is has_body
        assert said[-1] is END


def test_interim_answers_are_counted_up_to_the_final_one() -> None:
    wire = AnswerWire()
    wire.asked = "POST"
    for _ in range(50):
        joined(wire, b"HTTP/1.1 103 Early Hints\r\n\r\n")
        assert joined(wire, SHORT + b"ok")[-1] is END


def test_what_is_unread_stands_before_what_comes() -> None:
    wire = AnswerWire()
    wire.asked = "POST"
    for _ in range(3):
        joined(wire, SHORT + b"ok")
    assert joined(wire, b"H") == []
    with pytest.raises(Fault):
        joined(wire, SHORT + b"ok")
