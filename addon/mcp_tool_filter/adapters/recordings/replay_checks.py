"""Checks that must hold for every replayed session."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mcp_tool_filter.adapters.recordings.recorded_answers import read
from mcp_tool_filter.adapters.recordings.transcript import Transcript, Turn
from mcp_tool_filter.policy.verdict import Why
from mcp_tool_filter.protocol.messages import METHOD_NOT_FOUND, Batch, singles
from mcp_tool_filter.protocol.sse import Event, EventParser, parse_event


def find_leaks(transcript: Transcript) -> Iterator[str]:
    """Yield a sentence for each denied tool that a client saw or could call."""
    exposed = transcript.snapshot.allowed
    for name in dict.fromkeys(transcript.listed_after):
        if name not in exposed:
            yield f"a client saw the tool {name}"
    for call in transcript.calls:
        if call.passes and call.tool not in exposed:
            yield f"a call of the tool {call.tool} reached the upstream"


def find_changes(transcript: Transcript) -> Iterator[str]:
    """Yield a sentence for each byte that was changed although nothing had to be hidden."""
    for number, turn in enumerate(transcript.turns, 1):
        where = f"turn {number}, {turn.head.method} {turn.head.target}"
        if not _kept_request(turn):
            yield f"{where}: the upstream did not get the request that the client sent"
        if not _kept_answer(turn):
            yield f"{where}: the client did not get the answer that the upstream sent"


def _kept_request(turn: Turn) -> bool:
    if turn.reached is None or turn.reached == turn.asked:
        return True
    asked, reached = read(turn.asked), read(turn.reached)
    if not isinstance(asked, Batch) or reached is None:
        return False
    sent = [one.place.raw for one in singles(asked)]
    return all(one.place.raw in sent for one in singles(reached))


def _kept_answer(turn: Turn) -> bool:
    if turn.reached is None or turn.said == turn.heard:
        return True
    if any(one.why is Why.INVALID for one in turn.judgements):
        return True
    said = [part for part in _parts(turn.said, turn) if not _may_change(part)]
    heard = [part for part in _parts(turn.heard, turn) if not _may_change(part)]
    return said == [part for part in heard if part in said or not _is_ours(part)]


def _parts(body: bytes, turn: Turn) -> list[bytes]:
    """Split an answer into the parts that are judged separately: events, messages, or all of it."""
    if turn.is_stream:
        events = [one for one in EventParser().feed(body) if isinstance(one, Event)]
        return [one.raw.strip(b"\r\n") for one in events if one.raw.strip(b"\r\n")]
    message = read(body)
    if isinstance(message, Batch):
        return [one.place.raw for one in singles(message)]
    return [body] if body else []


def _may_change(part: bytes) -> bool:
    """Tool lists lose tools; an endpoint loses its host."""
    if part.startswith(b"event: endpoint"):
        return True
    match _parsed(part):
        case {"result": {"tools": [*_]}}:
            return True
    return False


def _is_ours(part: bytes) -> bool:
    """Tell whether this is our own answer to a call."""
    match _parsed(part):
        case {"error": {"code": code, "message": str(said)}}:
            return bool(code == METHOD_NOT_FOUND and said.startswith("Tool not found: "))
    return False


def _parsed(part: bytes) -> object:
    is_json = part.lstrip()[:1] in (b"{", b"[")
    data = part if is_json else parse_event(part + b"\n\n").data
    try:
        return json.loads(data or b"null")
    except ValueError:
        return None
