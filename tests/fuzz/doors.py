"""What the fuzzer pushes bytes through, and what must hold of all that leaves there.

Each door takes a byte that says in which circumstances, and what comes in: over HTTP, also by
HTTP+SSE; in event streams and lines, where cut anywhere the same must come out; and the parsers.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import partial
from itertools import pairwise
from typing import assert_never

from mcp_tool_filter.cli.parsing import split_patterns
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.http.asked import HttpExchange, LegacyEndpoints, Passed
from mcp_tool_filter.core.http.bodies import decode_body
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages import messages
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.patterns import parse_pattern
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite
from mcp_tool_filter.rooms.stdio.judge import LineJudge
from mcp_tool_filter.rooms.stdio.lines import CutLine, LineParser
from tests.fuzz import oracle, subject
from tests.fuzz.oracle import no_call_but_of, no_tool_but_of, no_tool_in_stream, require
from tests.fuzz.subject import ALLOWED, ASKED, CODINGS, DENIED, LISTENER, MARK, PAGES, SNAPSHOT
from tests.make import asking, at_once, calling, judge_from_upstream

_KINDS = (
    "application/json", "text/event-stream", "text/html", "", "application/json; charset=utf-16",
    "text/plain; charset=utf-7", "application/octet-stream", "application/x-www-form-urlencoded",
)  # fmt: skip

_STATUSES = (200, 200, 202, 206, 400, 404, 500, 201)


def request_door(how: int, body: bytes) -> None:
    """A POST to the endpoint, or elsewhere, in one of the codings."""
    coding = CODINGS[how & 7]
    headers = [(b"content-type", b"application/json"), (b"accept", b"application/json")]
    if coding:
        headers.append((b"content-encoding", coding.encode()))
    head = Head("POST", "/elsewhere" if how & 8 else "/mcp", tuple(headers))
    outcome = subject.settled(LISTENER.judge_request(head, body))
    subject.check_request(head, body, outcome)
    if not coding and oracle.is_honest(body):
        require(isinstance(outcome, Passed), "an honest message is refused", outcome)


def request_with_head_door(how: int, raw: bytes) -> None:
    """A request whose head is fuzzed too: the target, a line for each header, then the body."""
    head_part, _, body = raw.partition(b"\r\n\r\n")
    target, *lines = head_part.split(b"\r\n")
    fields = [line.partition(b":") for line in lines]
    headers = tuple((name.strip(), value.strip()) for name, _, value in fields)
    method = ("POST", "GET", "PUT", "DELETE")[how & 3]
    head = Head(method, target.decode("latin-1"), headers)
    subject.check_request(head, body, subject.settled(LISTENER.judge_request(head, body)))


def answer_door(how: int, body: bytes) -> None:
    """The whole answer to a request, in one of the types."""
    method = ASKED[how & 3]
    asked = subject.begun_with(method)
    status, kind = _STATUSES[how >> 2 & 7], _KINDS[how >> 5 & 7]
    judged = at_once(LISTENER.judge_answer(asked, status, kind, "", body))
    left = body if judged is None else judged.body
    is_list = method == "tools/list" and status == 200
    kind_left = kind if judged is None else judged.content_type
    no_tool_but_of(SNAPSHOT.allowed, DENIED, left, kind_left, is_list=is_list)
    if oracle.is_honest(body) and status == 200 and kind == "application/json":
        require(judged is None, "an honest answer is changed", judged)
    if method == "tools/list" and judged:
        subject.check_learned()


def coded_answer_door(how: int, body: bytes) -> None:
    """An answer in one of the codings; a client may undo it, or fail to."""
    asked, coding = subject.begun_with("tools/list"), CODINGS[how & 7]
    judged = at_once(LISTENER.judge_answer(asked, 200, "application/json", coding, body))
    left = body if judged is None else judged.body
    no_tool_but_of(SNAPSHOT.allowed, DENIED, left, is_list=True)


def exchange_door(how: int, raw: bytes) -> None:
    """What a client says, and behind two NULs what the upstream says to it."""
    said, _, heard = raw.partition(subject.BETWEEN)
    if how & 1:
        legacy_exchange(said, heard)
        return
    fields = ((b"accept", b"application/json, text/event-stream"),)
    head = Head("POST", "/mcp", fields)
    outcome = subject.settled(LISTENER.judge_request(head, said))
    subject.check_request(head, said, outcome)
    if isinstance(outcome, Passed):
        _answer_it(how, outcome.exchange, heard)


def _answer_it(how: int, asked: HttpExchange, heard: bytes) -> None:
    exchanges = asked.conversation.exchanges
    is_list = set(exchanges.methods) == {"tools/list"} and len(exchanges) == 1
    LISTENER.note_answer_head(asked, 200, "s" if how & 4 else None)
    if how & 2:
        stream = LISTENER.open_stream(asked, "/mcp", None)
        no_tool_in_stream(
            SNAPSHOT.allowed, DENIED, subject.whole_of(stream, heard), is_list=is_list
        )
        return
    judged = at_once(LISTENER.judge_answer(asked, 200, "application/json", "", heard))
    left = heard if judged is None else judged.body
    no_tool_but_of(SNAPSHOT.allowed, DENIED, left, is_list=is_list)
    for reply in asked.owed:
        require(reply in left, "a reply that is owed and not given", reply, left)
    if asked.owed:
        json.loads(left, parse_int=str)
    require(not asked.conversation.exchanges.methods or bool(left), "nothing for one who waits")
    subject.check_learned()


def legacy_exchange(said: bytes, heard: bytes) -> None:
    """The same by HTTP+SSE: on the stream, and what we say there ourselves."""
    sent: list[bytes] = []

    def send(event: bytes) -> bool:
        sent.append(event)
        return True

    stream = LISTENER.open_stream(LISTENER.unasked(), "/sse", send)
    stream.feed(b"event: endpoint\ndata: /messages\n\n")
    head = Head("POST", "/messages", ())
    outcome = subject.settled(LISTENER.judge_request(head, said))
    subject.check_request(head, said, outcome)
    left = b"".join(sent) + subject.whole_of(stream, heard)
    no_tool_in_stream(SNAPSHOT.allowed, DENIED, left, is_list=False)
    oracle.no_endpoint_but_ours(left)
    LISTENER.tell_of_loss("/messages", said)
    require(MARK not in b"".join(sent), "the mark in what we say ourselves", sent)


def stream_door(how: int, raw: bytes) -> None:
    """An event stream; ``how`` says how it is cut: the same must come out."""
    method = ASKED[how & 3]
    limits = Limits(message=400, pending=300) if how & 4 else Limits()
    whole = _filtered(method, [raw], limits)
    no_tool_in_stream(SNAPSHOT.allowed, DENIED, whole, is_list=method == "tools/list")
    oracle.no_endpoint_but_ours(whole)
    if not how & 4 and oracle.is_honest_stream(raw):
        require(whole == raw, "an honest stream is changed", raw, whole)
    for chunks in _cuts(raw, how >> 3):
        cut = _filtered(method, chunks, limits)
        require(cut == whole, "a stream is filtered by how it is cut", chunks, cut, whole)


def _filtered(method: str, chunks: list[bytes], limits: Limits) -> bytes:
    LISTENER.legacy = LegacyEndpoints()
    LISTENER.policy.config = _CONFIGS[limits]
    try:
        stream = LISTENER.open_stream(subject.begun_with(method), "/sse", lambda chunk: True)
        left = b"".join([*map(stream.feed, chunks), stream.finish() or b""])
    finally:
        LISTENER.policy.config = _CONFIGS[Limits()]
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
    limits: Config(choice=LISTENER.config.choice, limits=limits)
    for limits in (Limits(), Limits(message=400, pending=300))
}


def spoken_door(how: int, raw: bytes) -> None:
    from_client = bool(how & 1)
    method = ASKED[how >> 1 & 3]
    conversation = subject.begun_with(method).conversation
    judge = conversation.from_client if from_client else partial(judge_from_upstream, conversation)
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
        no_call_but_of(SNAPSHOT.allowed, left)
    else:
        no_tool_but_of(SNAPSHOT.allowed, DENIED, left, is_list=method == "tools/list")


class _AllButDenied(dict[str, bytes]):
    """What may be called before the list is known: whatever the pattern does not deny."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not name.startswith("wipe")


def lines_door(how: int, raw: bytes) -> None:
    """Bytes on stdin or stdout, before or after the client has seen the list."""
    from_client, is_listed, size = bool(how & 1), bool(how & 2), 1 + (how >> 2)
    judge = LineJudge(LISTENER.policy.config, observe=_unwatched, on_listed=_unwatched)
    asked = ASKED[how >> 2 & 3]
    if is_listed:
        judge.from_client(asking("tools/list", id='"list"'))
        judge.from_upstream(PAGES.replace(b'"id":1', b'"id":"list"'))
    if not from_client and asked:
        judge.from_client(asking(asked) if asked != "tools/call" else calling(ALLOWED))
    lines = _cut_into_lines([raw])
    require(lines == _cut_into_lines(_pieces(raw, size)), "chunk boundaries matter", raw)
    for line in lines:
        decide = judge.from_client if from_client else judge.from_upstream
        left = _left_of(line, at_once(decide(line)))
        require(b"\r" not in left and b"\n" not in left, "a line within a line", left)
        if from_client:
            no_call_but_of(SNAPSHOT.allowed if is_listed else _AllButDenied(), left)
        else:
            no_tool_but_of(SNAPSHOT.allowed, DENIED, left, is_list=False)


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


def pattern_door(how: int, raw: bytes) -> None:
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


def parsers_door(how: int, raw: bytes) -> None:
    """Nothing but ProtocolError leaves a parser; what it finds is what is written."""
    with contextlib.suppress(ProtocolError):
        message = messages.parse_message(raw)
        for one in messages.singles(message):
            if isinstance(one, messages.Request):
                require(one.id.encode() in raw, "an id that is not in the message", one.id)
    with contextlib.suppress(ProtocolError):
        messages.is_json_rpc(raw)
    for id in (*messages.ids_in(raw), *messages.ids_guessed_in(raw)):
        json.loads(id, parse_int=str)
    with contextlib.suppress(ProtocolError):
        decode_body(raw, CODINGS[how & 7], limit=1 << 20)
