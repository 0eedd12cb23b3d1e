"""The doors for HTTP: a request, an answer, and both, also by HTTP+SSE."""

from __future__ import annotations

import json

from mcp_tool_filter.http.exchange import HttpExchange, Passed
from mcp_tool_filter.http.head import Head
from tests.fuzz.oracle import (
    is_honest,
    no_endpoint_but_ours,
    no_tool_but_of,
    no_tool_in_stream,
    require,
)
from tests.fuzz.subject import (
    ASKED,
    BETWEEN,
    CODINGS,
    DENIED,
    LISTENER,
    MARK,
    SNAPSHOT,
    begun_with,
    check_learned,
    check_request,
    settled,
    whole_of,
)
from tests.make import at_once

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


def request_door(how: int, body: bytes) -> None:
    """A POST to the endpoint, or elsewhere, in one of the codings."""
    coding = CODINGS[how & 7]
    headers = [(b"content-type", b"application/json"), (b"accept", b"application/json")]
    if coding:
        headers.append((b"content-encoding", coding.encode()))
    head = Head("POST", "/elsewhere" if how & 8 else "/mcp", tuple(headers))
    outcome = settled(LISTENER.judge_request(head, body))
    check_request(head, body, outcome)
    if not coding and is_honest(body):
        require(isinstance(outcome, Passed), "an honest message is refused", outcome)


def request_with_head_door(how: int, raw: bytes) -> None:
    """A request whose head is fuzzed too: the target, a line for each header, then the body."""
    head_part, _, body = raw.partition(b"\r\n\r\n")
    target, *lines = head_part.split(b"\r\n")
    fields = [line.partition(b":") for line in lines]
    headers = tuple((name.strip(), value.strip()) for name, _, value in fields)
    method = ("POST", "GET", "PUT", "DELETE")[how & 3]
    head = Head(method, target.decode("latin-1"), headers)
    check_request(head, body, settled(LISTENER.judge_request(head, body)))


def answer_door(how: int, body: bytes) -> None:
    """The whole answer to a request, in one of the types."""
    method = ASKED[how & 3]
    asked = begun_with(method)
    status, kind = _STATUSES[how >> 2 & 7], _KINDS[how >> 5 & 7]
    judged = at_once(LISTENER.judge_answer(asked, status, kind, "", body))
    left = body if judged is None else judged.body
    is_list = method == "tools/list" and status == 200
    kind_left = kind if judged is None else judged.content_type
    no_tool_but_of(SNAPSHOT.allowed, DENIED, left, kind_left, is_list=is_list)
    if is_honest(body) and status == 200 and kind == "application/json":
        require(judged is None, "an honest answer is changed", judged)
    if method == "tools/list" and judged:
        check_learned()


def coded_answer_door(how: int, body: bytes) -> None:
    """An answer in one of the codings; a client may undo it, or fail to."""
    asked, coding = begun_with("tools/list"), CODINGS[how & 7]
    judged = at_once(LISTENER.judge_answer(asked, 200, "application/json", coding, body))
    left = body if judged is None else judged.body
    no_tool_but_of(SNAPSHOT.allowed, DENIED, left, is_list=True)


def exchange_door(how: int, raw: bytes) -> None:
    """What a client says, and behind two NULs what the upstream says to it."""
    said, _, heard = raw.partition(BETWEEN)
    if how & 1:
        legacy_exchange(said, heard)
        return
    fields = ((b"accept", b"application/json, text/event-stream"),)
    head = Head("POST", "/mcp", fields)
    outcome = settled(LISTENER.judge_request(head, said))
    check_request(head, said, outcome)
    if isinstance(outcome, Passed):
        _answer_it(how, outcome.exchange, heard)


def _answer_it(how: int, asked: HttpExchange, heard: bytes) -> None:
    is_list = (
        set(asked.conversation.exchanges.methods) == {"tools/list"}
        and len(asked.conversation.exchanges) == 1
    )
    LISTENER.note_answer_head(asked, 200, "s" if how & 4 else None)
    if how & 2:
        stream = LISTENER.open_stream(asked, "/mcp", None)
        no_tool_in_stream(SNAPSHOT.allowed, DENIED, whole_of(stream, heard), is_list=is_list)
        return
    judged = at_once(LISTENER.judge_answer(asked, 200, "application/json", "", heard))
    left = heard if judged is None else judged.body
    no_tool_but_of(SNAPSHOT.allowed, DENIED, left, is_list=is_list)
    for reply in asked.owed:
        require(reply in left, "a reply that is owed and not given", reply, left)
    if asked.owed:
        json.loads(left, parse_int=str)
    require(not asked.conversation.exchanges.methods or bool(left), "nothing for one who waits")
    check_learned()


def legacy_exchange(said: bytes, heard: bytes) -> None:
    """The same by HTTP+SSE: on the stream, and what we say there ourselves."""
    sent: list[bytes] = []

    def send(event: bytes) -> bool:
        sent.append(event)
        return True

    stream = LISTENER.open_stream(LISTENER.unasked(), "/sse", send)
    stream.feed(b"event: endpoint\ndata: /messages\n\n")
    head = Head("POST", "/messages", ())
    outcome = settled(LISTENER.judge_request(head, said))
    check_request(head, said, outcome)
    left = b"".join(sent) + whole_of(stream, heard)
    no_tool_in_stream(SNAPSHOT.allowed, DENIED, left, is_list=False)
    no_endpoint_but_ours(left)
    LISTENER.tell_of_loss("/messages", said)
    require(MARK not in b"".join(sent), "the mark in what we say ourselves", sent)
