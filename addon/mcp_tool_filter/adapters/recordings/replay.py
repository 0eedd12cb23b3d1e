"""Replay a recorded session with other patterns and without a network.

    transcript = replay(read_recording(path), deny="^write_")
    assert "write_file" in transcript.before
    assert "write_file" not in transcript.listed_after

Everything between the sockets is real: mitmproxy's connections and layers, the addon, its hooks.
The recorded client and upstream send the same messages again, in the recorded order, on connections
in memory. A request that the upstream never got, because the filter answered it at the time, is
answered from the recorded tool list, or with an error that says that the answer is unknown.

At the end are the checks that must hold for every replayed session.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.recordings.flow_dump import RecordedFlow, Recording, Said
from mcp_tool_filter.adapters.recordings.memory_connection import HeadFields, MemoryConnection
from mcp_tool_filter.adapters.recordings.recorded_answers import (
    ToolsUnknown,
    answers_nobody_asked_for,
    endpoint_in,
    guess_answer,
    ids_asked,
    known_tools,
    read,
    without_answers,
)
from mcp_tool_filter.adapters.recordings.transcript import Judgement, Transcript, Turn
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.http.urls import UpstreamNames
from mcp_tool_filter.observers.sentences import describe
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.snapshot import Snapshot, Standing
from mcp_tool_filter.policy.verdict import Forward, Why
from mcp_tool_filter.protocol.messages import METHOD_NOT_FOUND, Batch, singles
from mcp_tool_filter.protocol.sse import Event, EventParser, parse_event, render_event


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


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of mitmproxy's own dependencies
    from mitmproxy.addons.next_layer import NextLayer
    from mitmproxy.addons.proxyserver import Proxyserver
    from mitmproxy.http import HTTPFlow
    from mitmproxy.test import taddons


_TURNS = 40
"""Turns of the event loop; more than any message needs from one end to the other."""


class _Step(NamedTuple):
    """One event of the recording."""

    at: float
    number: int
    """The number of the flow; its own steps are already in order."""
    take: Callable[[], None]


def replay(
    recording: Recording,
    *,
    deny: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    **options: str,
) -> Transcript:
    """Return the transcript of a recording, filtered with these patterns.

    ``options`` are more options of the addon, as text. Raises StartError for wrong patterns and
    options, and for a recording without the upstream's tools.
    """
    given = {"deny": _texts(deny), "allow": _texts(allow)}
    patterns = {option: texts for option, texts in given.items() if texts}
    parse_config(**patterns, **options)  # type: ignore[arg-type]  # text or list, as its default
    if rules := options.get("rules"):
        from mcp_tool_filter.adapters.rules.file import read_rules  # seldom needed

        read_rules(rules)
    fetched = recording.fetched or known_tools(recording)
    if fetched is None:
        raise ToolsUnknown(recording.name)
    return asyncio.run(
        _Replay(recording, fetched).run(patterns | {name: [text] for name, text in options.items()})
    )


class _Offline(ToolFilter):
    """The addon in front of a recorded upstream."""

    def __init__(self, fetched: Fetched) -> None:
        async def fetch(_target: Target) -> Fetched:
            return replace(fetched, is_for_all=True)

        super().__init__(fetch=fetch, find_names=_names_offline, report=_ignore, warn=_ignore)
        self.proxy.rules.is_offline = True

    def snapshot(self) -> Snapshot:
        [site] = self.proxy.sites.values()
        return site.listener.snapshot


class _Replay:
    """One replay of a recording."""

    def __init__(self, recording: Recording, fetched: Fetched) -> None:
        self.fetched = fetched
        self._flows = [_ReplayedFlow(self, *one) for one in enumerate(recording.flows)]
        self._recording = recording
        self._by_client: dict[str, _ReplayedFlow] = {}
        self.unasked: dict[str, set[str]] = {}
        """The ids of requests that did not reach the upstream, by the path of their POST."""

    async def run(self, options: dict[str, list[str]]) -> Transcript:
        addon = _Offline(self.fetched)
        addon.views.observe = self._note
        with _master(addon) as context:
            mode = f"reverse:{_plain(self._recording)}"
            context.configure(addon, mode=[mode], connection_strategy="lazy", **options)
            addon.running()
            for flow in self._flows:
                flow.connection = MemoryConnection(context.master, mode)
                self._by_client[flow.connection.client.id] = flow
            steps = (step for flow in self._flows for step in flow.steps())
            for step in sorted(steps, key=itemgetter(0, 1)):
                step.take()
                await self._settle()
            for flow in self._flows:
                flow.connection.hang_up()
            await self._settle()
            for flow in self._flows:
                await flow.connection.ended()
        turns = tuple(flow.turn() for flow in self._flows)
        return Transcript(self._recording.name, addon.snapshot(), self.fetched.pages, turns)

    def stream_for(self, target: str) -> _ReplayedFlow | None:
        """Return the open stream that answers a client of the older transport."""
        return next((flow for flow in self._flows if flow.endpoint == target), None)

    def _note(self, flow: HTTPFlow, judged: Judged) -> None:
        if replayed := self._by_client.get(flow.client_conn.id):
            sentence = describe(judged.verdict, judged.snapshot)
            rules = tuple(_rules_in(judged))
            replayed.judgements.append(Judgement(judged.message, judged.verdict, sentence, rules))

    async def _settle(self) -> None:
        """Let all tasks run until they only wait for the next step."""
        news = True
        while news:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            found = [flow.look_at_upstream() for flow in self._flows]
            news = any(found)


def _rules_in(judged: Judged) -> Iterator[str]:
    for one in judged.each:
        if not isinstance(one.verdict, Forward) and one.verdict.reason.rule:
            yield one.verdict.reason.rule


class _ReplayedFlow:
    """One recorded flow, and its replay."""

    def __init__(self, replay: _Replay, number: int, recorded: RecordedFlow) -> None:
        self.recorded = recorded
        self.judgements: list[Judgement] = []
        self.connection: MemoryConnection
        self.endpoint = endpoint_in(recorded.said)
        self._replay = replay
        self._number = number
        self._has_asked = False
        self._reached: bytes | None = None
        self._said = bytearray()
        self._is_guess = False
        self._parser = EventParser()

    def steps(self) -> Iterator[_Step]:
        flow, said = self.recorded, self.recorded.said
        yield _Step(flow.at, self._number, self._ask)
        if said is None:
            return
        if said.is_event_stream:
            yield _Step(said.at, self._number, partial(self._begin, said))
            for chunk in said.chunks:
                yield _Step(chunk.at, self._number, partial(self._say, chunk.data))
        if said.ended is not None:
            yield _Step(said.ended, self._number, partial(self._finish, said))

    def turn(self) -> Turn:
        flow, heard = self.recorded, self.connection.heard()
        return Turn(
            head=flow.head,
            asked=flow.body,
            reached=self._reached,
            said=bytes(self._said),
            is_guess=self._is_guess,
            status=heard.status,
            heard=heard.body,
            content_type=heard.content_type,
            judgements=tuple(self.judgements),
        )

    # The client

    def _ask(self) -> None:
        flow = self.recorded
        self._has_asked = True
        self.connection.ask(flow.head, flow.host or "unknown.invalid", flow.body)

    # The upstream

    def look_at_upstream(self) -> bool:
        """Check whether the request has reached the upstream; answer it if the recording cannot."""
        if not self._has_asked or self._reached is not None:
            return False
        self._reached = self.connection.asked()
        target = self.recorded.head.target
        unasked = ids_asked(self.recorded.body) - ids_asked(self._reached or b"")
        self._replay.unasked.setdefault(target, set()).update(unasked)
        if self._reached is not None and self.recorded.said is None:
            self._answer_unrecorded(self._reached)
        return self._reached is not None

    def _answer_unrecorded(self, asked: bytes) -> None:
        self._is_guess = True
        guessed = guess_answer(asked, self._replay.fetched)
        stream = self._replay.stream_for(self.recorded.head.target)
        if stream and guessed:
            stream.say_event(render_event(guessed))
            guessed = b""
        self._answer(200 if guessed else 202, guessed)

    def say_event(self, event: bytes) -> None:
        self._said += event
        self.connection.say(event)

    def _answer(self, status: int, body: bytes, fields: HeadFields = ()) -> None:
        self._said += body
        self.connection.answer(status, body, fields)

    def _begin(self, said: Said) -> None:
        if self._reached is not None:
            self.connection.begin_stream(said.status, said.headers)

    def _say(self, data: bytes) -> None:
        if self._reached is None:
            return
        unasked = self._unasked()
        if not self.endpoint and not unasked:
            self.say_event(data)  # with the recorded chunks
            return
        for event in self._parser.feed(data):
            if isinstance(event, Event) and not answers_nobody_asked_for(event, unasked):
                self.say_event(event.raw)

    def _finish(self, said: Said) -> None:
        if self._reached is None:
            return
        if said.is_event_stream:
            self.say_event(self._parser.finish())
            self.connection.end_stream()
        else:
            body = without_answers(said.body, self._unasked())
            self._answer(said.status, body, said.headers)

    def _unasked(self) -> set[str]:
        """Return the ids of requests that did not reach the upstream in this replay."""
        if self.endpoint:
            return self._replay.unasked.get(self.endpoint, set())
        return ids_asked(self.recorded.body) - ids_asked(self._reached or b"")


@contextmanager
def _master(addon: object) -> Iterator[taddons.context]:
    with taddons.context(addon, Proxyserver(), NextLayer()) as context:
        context.master._legacy_log_events.uninstall()
        yield context


async def _names_offline(url: str) -> UpstreamNames:
    """Like ``find_names`` but without any look-up: a replay uses no network."""
    return UpstreamNames(url)


def _ignore(_text: str) -> None:
    pass


def _texts(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _plain(recording: Recording) -> str:
    """Return the upstream's URL without TLS, which connections in memory do not need."""
    upstream = recording.flows[0].upstream if recording.flows else "http://localhost:80"
    return "http://" + upstream.partition("://")[2]
