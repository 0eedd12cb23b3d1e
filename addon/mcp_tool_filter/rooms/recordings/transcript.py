"""The messages of a replayed session before and after the filter.

A transcript can be kept as text (``render``) beside its recording, so that a change of the filter's
behaviour shows as a change of the text. ``find_leaks`` and ``find_changes`` are the checks that
must hold for every one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import may_be_event_stream
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages.messages import (
    METHOD_NOT_FOUND,
    Batch,
    Message,
    Notification,
    Request,
    singles,
)
from mcp_tool_filter.core.messages.sse import Event, EventParser, parse_event
from mcp_tool_filter.core.messages.tool_requests import parse_tool_call
from mcp_tool_filter.core.policy.snapshot import Snapshot, Standing
from mcp_tool_filter.core.policy.verdict import Forward, Verdict, Why
from mcp_tool_filter.core.process.verdict_log import is_refusal
from mcp_tool_filter.rooms.recordings.reading import tools_in
from mcp_tool_filter.rooms.recordings.recorded_upstream import messages_in, read


class Reported(TypedDict):
    """What would have happened to a message that was forwarded."""

    method: str
    """Of the message, or of the request that it answers."""
    tool: str | None
    of_answer: bool
    verdict: str
    why: str
    text: str
    """In one line."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A message, its verdict, and a description of the verdict."""

    message: Message | None
    verdict: Verdict
    sentence: str
    rules: tuple[str, ...] = ()
    """The rules that refused or changed it, or what is in it."""
    reported: tuple[Reported, ...] = ()
    """What would have happened to it, or to what is in it, if that was only reported."""
    things: tuple[tuple[str, bool], ...] = ()
    """The denied prompts, resources and skills in it, and whether the client asked for them."""

    @property
    def why(self) -> Why | None:
        return None if isinstance(self.verdict, Forward) else self.verdict.reason.why


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One HTTP request and its answer, on both sides of the filter."""

    head: Head
    asked: bytes
    """What the client sent."""
    reached: bytes | None
    """What the upstream received of it; None if nothing."""
    said: bytes
    """The upstream's answer."""
    is_guess: bool
    """True if the recording does not contain the upstream's answer."""
    status: int
    heard: bytes
    """What the client got."""
    content_type: str
    judgements: tuple[Judgement, ...]

    @property
    def is_stream(self) -> bool:
        return may_be_event_stream(self.content_type)

    @property
    def is_untouched(self) -> bool:
        """True if the filter forwarded all its messages unchanged."""
        return all(isinstance(judgement.verdict, Forward) for judgement in self.judgements)

    @property
    def refusals(self) -> list[Judgement]:
        return [judgement for judgement in self.judgements if is_refusal(judgement.verdict)]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the client made."""

    tool: str
    passes: bool
    is_known: bool
    """True if the recording contains the upstream's answer."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A session, turn by turn in order of the requests."""

    name: str
    snapshot: Snapshot
    pages: tuple[bytes, ...]
    """The upstream's tool list, as fetched at start."""
    turns: tuple[RecordedTurn, ...]

    @property
    def calls(self) -> list[Call]:
        """All tool calls, in order."""
        return [call for turn in self.turns for call in _calls_in(turn)]

    @property
    def before(self) -> str:
        """Everything that client and upstream sent, the upstream's tool list first."""
        said = (part for turn in self.turns for part in (turn.asked, turn.said))
        return _text([*self.pages, *said])

    @property
    def after(self) -> str:
        """Everything that upstream and client received."""
        return _text(part for turn in self.turns for part in (turn.reached, turn.heard))

    @property
    def listed_before(self) -> list[str]:
        """The names of all tools that the upstream has."""
        return [name for page in self.pages for name in tools_in(page, "application/json")]

    @property
    def listed_after(self) -> list[str]:
        """The names of all tools that clients saw in lists."""
        return [name for turn in self.turns for name in tools_in(turn.heard, turn.content_type)]

    def render(self) -> str:
        """Render the transcript, one message per line."""
        return "\n".join(line for turn in self.turns for line in _turn_lines(turn)) + "\n"


def _turn_lines(turn: RecordedTurn) -> Iterator[str]:
    yield f"{turn.head.method} {turn.head.target}"
    yield from _labelled("client says    ", turn.asked)
    if turn.reached is None:
        yield "upstream gets   nothing"
    elif turn.reached != turn.asked:
        yield from _labelled("upstream gets  ", turn.reached)
    if turn.is_guess:
        yield "upstream says   (not recorded)"
    yield from _labelled("upstream says  ", turn.said)
    if turn.heard != turn.said or not turn.is_untouched:
        yield from _labelled(f"client gets {turn.status}", turn.heard)
    else:
        yield f"client gets {turn.status} the same"
    for judgement in turn.judgements:
        if not isinstance(judgement.verdict, Forward):
            yield f"because         {judgement.sentence}".replace("\n", "\n                ")
    yield ""


def _labelled(label: str, body: bytes) -> Iterator[str]:
    for line in body.decode("utf-8", "backslashreplace").replace("\r", "").split("\n"):
        if line.strip() and line != "event: message":
            yield f"{label} {line}"


def _calls_in(turn: RecordedTurn) -> Iterator[Call]:
    reached = [one.place.raw for one in _calls(turn.reached or b"")]
    for one in _calls(turn.asked):
        passes = one.place.raw in reached
        yield Call(_tool_in(one), passes, not turn.is_guess)


def _calls(body: bytes) -> list[Request | Notification]:
    return [
        one
        for one in messages_in(body)
        if isinstance(one, Request | Notification) and one.method == "tools/call"
    ]


def _tool_in(call: Request | Notification) -> str:
    try:
        return parse_tool_call(call).tool_name
    except ProtocolError:
        return "?"


def _text(parts: Iterable[bytes | None]) -> str:
    return "\n".join(part.decode("utf-8", "backslashreplace") for part in parts if part)


# What must hold


def find_leaks(transcript: Transcript) -> Iterator[str]:
    """Yield a sentence for each denied tool that a client saw or could call."""
    standing = transcript.snapshot.standing
    for name in dict.fromkeys(transcript.listed_after):
        if standing(name) is not Standing.ALLOWED:
            yield f"a client saw the tool {name}"
    for call in transcript.calls:
        if call.passes and standing(call.tool) is not Standing.ALLOWED:
            yield f"a call of the tool {call.tool} reached the upstream"


def find_changes(transcript: Transcript) -> Iterator[str]:
    """Yield a sentence for each byte that was changed although nothing had to be hidden."""
    for number, turn in enumerate(transcript.turns, 1):
        where = f"turn {number}, {turn.head.method} {turn.head.target}"
        if not _kept_request(turn):
            yield f"{where}: the upstream did not get the request that the client sent"
        if not _kept_answer(turn):
            yield f"{where}: the client did not get the answer that the upstream sent"


def _kept_request(turn: RecordedTurn) -> bool:
    if turn.reached is None or turn.reached == turn.asked:
        return True
    asked, reached = read(turn.asked), read(turn.reached)
    if not isinstance(asked, Batch) or reached is None:
        return False
    sent = [one.place.raw for one in singles(asked)]
    return all(one.place.raw in sent for one in singles(reached))


def _kept_answer(turn: RecordedTurn) -> bool:
    if turn.reached is None or turn.said == turn.heard:
        return True
    if any(judgement.why is Why.INVALID for judgement in turn.judgements):
        return True
    said = [part for part in _parts(turn.said, turn) if not _may_change(part)]
    heard = [part for part in _parts(turn.heard, turn) if not _may_change(part)]
    return said == [part for part in heard if part in said or not _is_ours(part)]


def _parts(body: bytes, turn: RecordedTurn) -> list[bytes]:
    """Split an answer into the parts that are judged separately: events, messages, or all of it."""
    if turn.is_stream:
        events = [one for one in EventParser().feed(body) if isinstance(one, Event)]
        return [event.raw.strip(b"\r\n") for event in events if event.raw.strip(b"\r\n")]
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
