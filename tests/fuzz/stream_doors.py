"""The doors for event streams, sockets and lines: cut anywhere, the same must come out."""

from __future__ import annotations

from itertools import pairwise
from typing import assert_never

from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.http.exchange import LegacyEndpoints
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine, LineParser
from tests.fuzz.oracle import (
    is_honest_stream,
    no_call_but_of,
    no_endpoint_but_ours,
    no_tool_but_of,
    no_tool_in_stream,
    require,
)
from tests.fuzz.subject import ALLOWED, ASKED, DENIED, LISTENER, MARK, PAGES, SNAPSHOT, begun_with
from tests.make import asking, at_once, calling


def stream_door(how: int, raw: bytes) -> None:
    """An event stream; ``how`` says how it is cut: the same must come out."""
    method = ASKED[how & 3]
    limits = Limits(message=400, pending=300) if how & 4 else Limits()
    whole = _filtered(method, [raw], limits)
    no_tool_in_stream(SNAPSHOT.allowed, DENIED, whole, is_list=method == "tools/list")
    no_endpoint_but_ours(whole)
    if not how & 4 and is_honest_stream(raw):
        require(whole == raw, "an honest stream is changed", raw, whole)
    for chunks in _cuts(raw, how >> 3):
        cut = _filtered(method, chunks, limits)
        require(cut == whole, "a stream is filtered by how it is cut", chunks, cut, whole)


def _filtered(method: str, chunks: list[bytes], limits: Limits) -> bytes:
    LISTENER.legacy = LegacyEndpoints()
    LISTENER.policy.config = _CONFIGS[limits]
    try:
        stream = LISTENER.open_stream(begun_with(method), "/sse", lambda chunk: True)
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
    conversation = begun_with(method).conversation
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
