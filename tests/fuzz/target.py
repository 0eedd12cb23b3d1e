"""What the fuzzer calls: bytes to one of our doors, and what leaves there held to the promises.

The first byte chooses the door, the second its circumstances; the rest is what comes in.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import assert_never

from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.conversation import from_upstream
from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.conversation.from_client import exchange_for
from mcp_tool_filter.conversation.session import Sessions
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.http.codings import decode_body
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import Answered, HttpExchange, Passed
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.listener import open_listener as open_listener_for
from mcp_tool_filter.policy.config import Config, parse_config
from mcp_tool_filter.policy.effects import Decision, waits
from mcp_tool_filter.policy.patterns import parse_pattern, split_patterns
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite
from mcp_tool_filter.protocol import long_values, scan
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine, LineParser
from mcp_tool_filter.protocol.messages import (
    Request,
    ids_guessed_in,
    ids_in,
    is_json_rpc,
    parse_message,
    singles,
)
from mcp_tool_filter.protocol.revisions import R2025_06_18, Transport
from tests.fuzz.oracle import (
    is_honest,
    is_honest_stream,
    no_call_but_of,
    no_call_in_head,
    no_endpoint_but_ours,
    no_tool_but_of,
    no_tool_in_stream,
    require,
)
from tests.fuzz.rules import judge_by_rules
from tests.fuzz.tokens import TOKENS
from tests.make import asking, at_once, calling, definition, listing, message

BETWEEN = b"\0\0"
DENIED, ALLOWED = "wipe_disk", "read_file"
MARK = b"burns-it-all"
"""Stands in the description of the denied tool and nowhere else."""

_PAGES = listing().replace(
    b"[]",
    b"[%s,%s]" % (definition(ALLOWED), definition(DENIED, f',"description":"{MARK.decode()}"')),
)
_CODINGS = ("", "gzip", "deflate", "br", "zstd", "identity", "GZip", "gzip, br")
_KINDS = (
    "application/json",
    "text/event-stream",
    "text/html",
    "",
    "application/json; charset=utf-16",
    "text/plain; charset=utf-7",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
)
_STATUSES = (200, 200, 202, 206, 400, 404, 500, 201)
_ASKED = ("tools/list", "tools/call", "ping", "")


def open_listener() -> Listener:
    return open_listener_for(
        upstream="http://127.0.0.1:3000",
        config=parse_config(deny=["^wipe"]),
        fetched=Fetched(
            transport=Transport.STREAMABLE,
            revision=R2025_06_18,
            endpoint="/mcp",
            server_name="server",
            server_version="1",
            sessions=True,
            pages=(_PAGES,),
        ),
        clock=lambda: 0.0,
    )


_LISTENER = open_listener()
_SNAPSHOT = _LISTENER.snapshot


def run(raw: bytes) -> None:
    """Push the bytes through the door they choose. Raises Violation for a broken promise."""
    if len(raw) < 2:
        return
    for from_upstream._LEAST, scan._LARGE, long_values._LONG in _LEAST:
        _LISTENER.sessions = Sessions()
        _LISTENER.policy.kinds.forget_all()
        _LISTENER.legacy.clear()
        _DOORS[raw[0] % len(_DOORS)](raw[1], raw[2:])


_LEAST = (
    (0, scan._LARGE, long_values._LONG),
    (from_upstream._LEAST, 0, 0),
    (from_upstream._LEAST, scan._LARGE, long_values._LONG),
)
"""As if each result, and then each value, was long enough for its short way; and as it is."""

# A request


def _request(how: int, body: bytes) -> None:
    """A POST to the endpoint, or elsewhere, in one of the codings."""
    coding = _CODINGS[how & 7]
    headers = [(b"content-type", b"application/json"), (b"accept", b"application/json")]
    if coding:
        headers.append((b"content-encoding", coding.encode()))
    head = Head("POST", "/elsewhere" if how & 8 else "/mcp", tuple(headers))
    outcome = _settled(_LISTENER.judge_request(head, body))
    _check_request(head, body, outcome)
    if not coding and is_honest(body):
        require(isinstance(outcome, Passed), "an honest message is refused", outcome)


def _request_with_head(how: int, raw: bytes) -> None:
    """A request whose head is fuzzed too: the target, a line for each header, then the body."""
    head_part, _, body = raw.partition(b"\r\n\r\n")
    target, *lines = head_part.split(b"\r\n")
    fields = [line.partition(b":") for line in lines]
    headers = tuple((name.strip(), value.strip()) for name, _, value in fields)
    method = ("POST", "GET", "PUT", "DELETE")[how & 3]
    head = Head(method, target.decode("latin-1"), headers)
    _check_request(head, body, _settled(_LISTENER.judge_request(head, body)))


def _settled(outcome: Decision[Passed | Answered]) -> Passed | Answered:
    """Give a call that waits for the list of its asker that list."""
    if not waits(outcome):
        return outcome
    try:
        next(outcome)
        while True:
            outcome.send((_PAGES,))
    except StopIteration as made:
        settled: Passed | Answered = made.value
        return settled


def _check_request(head: Head, raw: bytes, outcome: Passed | Answered) -> None:
    match outcome:
        case Passed(_, body):
            left = raw if body is None else body
            kind = head.get(b"content-type") or ""
            no_call_but_of(_SNAPSHOT.allowed, left, kind)
            no_call_in_head(_SNAPSHOT.allowed, head.target, head.headers)
            with contextlib.suppress(ProtocolError):
                coding = head.get(b"content-encoding") or ""
                decoded = decode_body(raw, coding, limit=1 << 20)
                _check_rewritten(decoded, body)
                no_call_but_of(_SNAPSHOT.allowed, decoded if body is None else body, kind)
        case Answered(status, body):
            require(MARK not in body, "the mark in an answer of ours", body)
            if status == 200:
                require(bool(body), "an empty answer")
            if body:
                json.loads(body, parse_int=str)
        case unexpected:
            assert_never(unexpected)


def _check_rewritten(came: bytes, left: bytes | None) -> None:
    """What is left of a batch is its own members, as they were written."""
    if left is None or left == came:
        return
    kept = [one.place.raw for one in singles(parse_message(left))]
    require(left == b"[" + b",".join(kept) + b"]", "a batch put together otherwise", left)
    at = 0
    for member in kept:
        at = came.find(member, at)
        require(at >= 0, "a member that is not the client's", member)
        at += len(member)


# An answer


def _answer(how: int, body: bytes) -> None:
    """The whole answer to a request, in one of the types."""
    method = _ASKED[how & 3]
    asked = _asked(method)
    status, kind = _STATUSES[how >> 2 & 7], _KINDS[how >> 5 & 7]
    judged = at_once(_LISTENER.judge_answer(asked, status, kind, "", body))
    left = body if judged is None else judged.body
    is_list = method == "tools/list" and status == 200
    kind_left = kind if judged is None else judged.content_type
    no_tool_but_of(_SNAPSHOT.allowed, DENIED, left, kind_left, is_list=is_list)
    if is_honest(body) and status == 200 and kind == "application/json":
        require(judged is None, "an honest answer is changed", judged)
    if method == "tools/list" and judged:
        _check_learned()


def _coded_answer(how: int, body: bytes) -> None:
    """An answer in one of the codings; a client may undo it, or fail to."""
    asked, coding = _asked("tools/list"), _CODINGS[how & 7]
    judged = at_once(_LISTENER.judge_answer(asked, 200, "application/json", coding, body))
    left = body if judged is None else judged.body
    no_tool_but_of(_SNAPSHOT.allowed, DENIED, left, is_list=True)


def _check_learned() -> None:
    """What was learned from an answer shows up in lists that we answer ourselves."""
    session = _LISTENER.sessions.open("s", 0.0)
    session.revision = R2025_06_18
    fields = {"mcp-session-id": "s", "accept": "application/json, text/event-stream"}
    headers = tuple((name.encode(), value.encode()) for name, value in fields.items())
    outcome = _settled(_LISTENER.judge_request(Head("POST", "/mcp", headers), asking("tools/list")))
    if isinstance(outcome, Answered):
        no_tool_but_of(_SNAPSHOT.allowed, DENIED, outcome.body, is_list=True)


def _asked(method: str) -> HttpExchange:
    exchange = _LISTENER.unasked()
    conversation = exchange.conversation
    conversation.client.said_revision = R2025_06_18
    if method and (begun := exchange_for(message(asking(method)), 0, 0.0)):
        conversation.exchanges.open(begun)
    return exchange


# A stream


def _stream(how: int, raw: bytes) -> None:
    """An event stream; ``how`` says how it is cut: the same must come out."""
    method = _ASKED[how & 3]
    limits = Limits(message=400, pending=300) if how & 4 else Limits()
    whole = _filtered(method, [raw], limits)
    no_tool_in_stream(_SNAPSHOT.allowed, DENIED, whole, is_list=method == "tools/list")
    no_endpoint_but_ours(whole)
    if not how & 4 and is_honest_stream(raw):
        require(whole == raw, "an honest stream is changed", raw, whole)
    for chunks in _cuts(raw, how >> 3):
        cut = _filtered(method, chunks, limits)
        require(cut == whole, "a stream is filtered by how it is cut", chunks, cut, whole)


def _filtered(method: str, chunks: list[bytes], limits: Limits) -> bytes:
    _LISTENER.legacy.clear()
    _LISTENER.policy.config = _CONFIGS[limits]
    try:
        stream = _LISTENER.open_stream(_asked(method), "/sse", lambda chunk: True)
        left = b"".join([*map(stream.feed, chunks), stream.finish()])
    finally:
        _LISTENER.policy.config = _CONFIGS[Limits()]
    if stream.failure is not None:
        raise stream.failure
    return left


def _cuts(raw: bytes, seed: int) -> list[list[bytes]]:
    bytewise = [raw[at : at + 1] for at in range(len(raw))]
    places = [0]
    while places[-1] < len(raw):  # odd steps that the fuzzer chooses between
        seed = (seed * 29 + 7) % 251
        places.append(places[-1] + 1 + seed % 40)
    return [bytewise, [raw[start:end] for start, end in pairwise(places)]]


_CONFIGS = {
    limits: Config(deny=_LISTENER.config.deny, limits=limits)
    for limits in (Limits(), Limits(message=400, pending=300))
}


# A request with its answer


def _exchange(how: int, raw: bytes) -> None:
    """What a client says, and behind two NULs what the upstream says to it."""
    said, _, heard = raw.partition(BETWEEN)
    if how & 1:
        _exchange_of_old(said, heard)
        return
    fields = ((b"accept", b"application/json, text/event-stream"),)
    head = Head("POST", "/mcp", fields)
    outcome = _settled(_LISTENER.judge_request(head, said))
    _check_request(head, said, outcome)
    if isinstance(outcome, Passed):
        _answer_it(how, outcome.exchange, heard)


def _answer_it(how: int, asked: HttpExchange, heard: bytes) -> None:
    is_list = (
        set(asked.conversation.exchanges.methods) == {"tools/list"}
        and len(asked.conversation.exchanges) == 1
    )
    _LISTENER.note_answer_head(asked, 200, "s" if how & 4 else None)
    if how & 2:
        stream = _LISTENER.open_stream(asked, "/mcp", None)
        no_tool_in_stream(_SNAPSHOT.allowed, DENIED, _all_of(stream, heard), is_list=is_list)
        return
    judged = at_once(_LISTENER.judge_answer(asked, 200, "application/json", "", heard))
    left = heard if judged is None else judged.body
    no_tool_but_of(_SNAPSHOT.allowed, DENIED, left, is_list=is_list)
    for reply in asked.owed:
        require(reply in left, "a reply that is owed and not given", reply, left)
    if asked.owed:
        json.loads(left, parse_int=str)
    require(not asked.conversation.exchanges.methods or bool(left), "nothing for one who waits")
    _check_learned()


def _exchange_of_old(said: bytes, heard: bytes) -> None:
    """The same by HTTP+SSE: on the stream, and what we say there ourselves."""
    sent: list[bytes] = []

    def send(event: bytes) -> bool:
        sent.append(event)
        return True

    stream = _LISTENER.open_stream(_LISTENER.unasked(), "/sse", send)
    stream.feed(b"event: endpoint\ndata: /messages\n\n")
    head = Head("POST", "/messages", ())
    outcome = _settled(_LISTENER.judge_request(head, said))
    _check_request(head, said, outcome)
    left = b"".join(sent) + _all_of(stream, heard)
    no_tool_in_stream(_SNAPSHOT.allowed, DENIED, left, is_list=False)
    no_endpoint_but_ours(left)
    _LISTENER.tell_of_loss("/messages", said)
    require(MARK not in b"".join(sent), "the mark in what we say ourselves", sent)


def _all_of(stream: EventStream, heard: bytes) -> bytes:
    left = stream.feed(heard) + stream.finish()
    if stream.failure is not None:
        raise stream.failure
    return left


# The two ways of a WebSocket


def _spoken(how: int, raw: bytes) -> None:
    from_client = bool(how & 1)
    method = _ASKED[how >> 1 & 3]
    conversation = _asked(method).conversation
    judge = conversation.from_client if from_client else conversation.judge_from_upstream
    verdict = at_once(judge(raw)).verdict
    match verdict:
        case Forward():
            left = raw
        case Rewrite(text):
            left = text
        case Reply(text):
            require(from_client and MARK not in text, "the mark in a reply of ours", text)
            return
        case Drop():
            return
        case unexpected:
            assert_never(unexpected)
    if from_client:
        no_call_but_of(_SNAPSHOT.allowed, left)
    else:
        no_tool_but_of(_SNAPSHOT.allowed, DENIED, left, is_list=method == "tools/list")


# Lines


class _AllButDenied(dict[str, bytes]):
    """What may be called before the list is known: whatever the pattern does not deny."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not name.startswith("wipe")


def _lines(how: int, raw: bytes) -> None:
    """Bytes on stdin or stdout, before or after the client has seen the list."""
    from_client, is_listed, size = bool(how & 1), bool(how & 2), 1 + (how >> 2)
    judge = LineJudge(_LISTENER.policy.config, observe=_unwatched, on_listed=_unwatched)
    asked = _ASKED[how >> 2 & 3]
    if is_listed:
        judge.from_client(asking("tools/list", id='"list"'))
        judge.from_upstream(_PAGES.replace(b'"id":1', b'"id":"list"'))
    if not from_client and asked:
        judge.from_client(asking(asked) if asked != "tools/call" else calling(ALLOWED))
    lines = _cut_into_lines([raw])
    require(lines == _cut_into_lines(_pieces(raw, size)), "chunk boundaries matter", raw)
    for line in lines:
        decide = judge.from_client if from_client else judge.from_upstream
        left = _left_of(line, at_once(decide(line)))
        require(b"\r" not in left and b"\n" not in left, "a line within a line", left)
        if from_client:
            no_call_but_of(_SNAPSHOT.allowed if is_listed else _AllButDenied(), left)
        else:
            no_tool_but_of(_SNAPSHOT.allowed, DENIED, left, is_list=False)


def _unwatched(*_: object) -> None:
    """Nobody watches."""


def _pieces(raw: bytes, size: int) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def _cut_into_lines(chunks: list[bytes]) -> list[bytes | CutLine]:
    parser = LineParser(max_pending=1000)
    return [*(line for chunk in chunks for line in parser.feed(chunk)), *parser.finish()]


def _left_of(line: bytes | CutLine, verdict: object) -> bytes:
    """Return what goes on to the other side."""
    match verdict:
        case Forward() if isinstance(line, bytes):
            return line
        case Rewrite(text):
            return text
    return b""


# Patterns, and the parsers by themselves


def _pattern(how: int, raw: bytes) -> None:
    """A pattern and, behind a NUL, the name it is asked about."""
    text, _, name = raw[:200].decode("utf-8", "surrogateescape").partition("\0")
    try:
        for one in split_patterns(text):
            parse_pattern(one, option="allow" if how & 1 else "deny")
        pattern = parse_pattern(text)
    except StartError:
        return
    found = pattern.matches(name[:256])
    if _is_simple(text) and "\n" not in name and len(name) < 30:
        same = re.search(text, name) is not None
        require(found == same, "a pattern that Python reads otherwise", text, name)


def _is_simple(text: str) -> bool:
    """Tell whether JavaScript and Python mean the same by a pattern."""
    plain = re.fullmatch(r"[a-z_0-9^$.*+?|()-]{0,30}", text)
    return plain is not None and not re.search(r"[*+?)][+*]|\(\?|\(\)|[|(^$][*+?]", text)


def _parsers(how: int, raw: bytes) -> None:
    """Nothing but ProtocolError leaves a parser; what it finds is what is written."""
    with contextlib.suppress(ProtocolError):
        message = parse_message(raw)
        for one in singles(message):
            if isinstance(one, Request):
                require(one.id.encode() in raw, "an id that is not in the message", one.id)
    with contextlib.suppress(ProtocolError):
        is_json_rpc(raw)
    for id in (*ids_in(raw), *ids_guessed_in(raw)):
        json.loads(id, parse_int=str)
    with contextlib.suppress(ProtocolError):
        decode_body(raw, _CODINGS[how & 7], limit=1 << 20)


# The rules behind the filter


def _by_rules(how: int, raw: bytes) -> None:
    """What a client says under some policy, and behind two NULs what the upstream says to it."""
    said, _, heard = raw.partition(BETWEEN)
    judge_by_rules(how, said, heard)


# Words instead of bytes


def _spelled(how: int, numbers: bytes) -> None:
    """Each byte is the number of a word: what comes of it is more often nearly a message."""
    if numbers:
        raw = b"".join(TOKENS[number % len(TOKENS)] for number in numbers[1:400])
        _DOORS[how % (len(_DOORS) - 1)](numbers[0], raw)


_DOORS: tuple[Callable[[int, bytes], None], ...] = (
    _request,
    _request_with_head,
    _answer,
    _coded_answer,
    _stream,
    _spoken,
    _pattern,
    _parsers,
    _exchange,
    _lines,
    _by_rules,
    _spelled,
)
