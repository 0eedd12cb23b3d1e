"""Replay a recorded session with other patterns and without a network.

    transcript = replay(read_recording(path), deny="^write_")
    assert "write_file" in transcript.before
    assert "write_file" not in transcript.listed_after

The engine, the listener and the chain are those that serve clients. The recorded client and
upstream say the same again, in the recorded order, as values instead of bytes on a connection. A
request that the upstream never got, because the filter answered it at the time, is answered from
the recorded tool list, or with an error that says that the answer is unknown.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.report import render_report
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.service import Asking
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.engine.wire import AnswerHead, RequestHead
from mcp_tool_filter.core.http.head import Fields
from mcp_tool_filter.core.http.urls import UpstreamNames
from mcp_tool_filter.core.messages.messages import Response
from mcp_tool_filter.core.messages.sse import Event, EventParser, render_event
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.verdict import TOOL, Forward, Why
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.sentences import describe, describe_reported, reported_word
from mcp_tool_filter.core.process.site import Site, Surroundings
from mcp_tool_filter.core.upstream.clients import JSON_BODY
from mcp_tool_filter.core.upstream.target import Target, target_for
from mcp_tool_filter.rooms.recordings.flow_dump import RecordedFlow, Recording, Said
from mcp_tool_filter.rooms.recordings.inner_client import InnerClient
from mcp_tool_filter.rooms.recordings.recorded_upstream import (
    ToolsUnknown,
    answers_nobody_asked_for,
    endpoint_in,
    guess_answer,
    ids_asked,
    known_tools,
    without_answers,
)
from mcp_tool_filter.rooms.recordings.transcript import (
    Judgement,
    RecordedTurn,
    Reported,
    Transcript,
)

_OURS_TO_SAY = (b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive")
_JSON = (JSON_BODY,)
_TURNS = 40
"""Turns of the event loop; more than any decision needs that does not wait for a time."""


class McpReplay(Protocol):
    """The fixture ``mcp_replay`` of the pytest plugin."""

    def __call__(
        self,
        path: str | Path,
        *,
        deny: str | Sequence[str] = (),
        allow: str | Sequence[str] = (),
        **options: str | Sequence[str],
    ) -> Transcript:
        """Replay a recording with these patterns, and return its transcript."""


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
    exceptions: str | Sequence[str] = (),
    **options: str | Sequence[str],
) -> Transcript:
    """Return the transcript of a recording, filtered with these patterns.

    ``options`` are more options of the addon, as text, or as texts if it can be repeated. Raises
    StartError for wrong patterns and options, and for a recording without the upstream's tools.
    """
    given = {"deny": _texts(deny), "allow": _texts(allow), "except": _texts(exceptions)}
    patterns = {option: texts for option, texts in given.items() if texts}
    config = parse_config({**patterns, **options})
    fetched = recording.fetched or known_tools(recording)
    if fetched is None:
        raise ToolsUnknown(recording.name)
    return asyncio.run(_Replay(recording, fetched).run(config))


class _Replay:
    """One replay of a recording."""

    def __init__(self, recording: Recording, fetched: Fetched) -> None:
        self.fetched = fetched
        self._recording = recording
        self._flows = [_ReplayedFlow(self, *one) for one in enumerate(recording.flows)]
        self.site: Site
        self.unasked: dict[str, set[str]] = {}
        """The ids of requests that did not reach the upstream, by the path of their POST."""

    async def run(self, config: Config) -> Transcript:
        proxy = self._proxy()
        proxy.adopt(config)
        proxy.begin()
        url = _plain(self._recording)
        site = self.site = await proxy.open(url, lambda now: target_for(now, url, None), address="")
        site.connect = _answer
        site.suspect = site.note_end_of_stream = lambda: None  # nothing can be lost
        steps = (step for flow in self._flows for step in flow.steps())
        for step in sorted(steps, key=itemgetter(0, 1)):
            step.take()
            await self._settle()
        for flow in self._flows:
            flow.leave()
        await self._settle()
        await proxy.close()
        turns = tuple(flow.turn() for flow in self._flows)
        return Transcript(self._recording.name, site.listener.snapshot, self.fetched.pages, turns)

    def _proxy(self) -> Proxy:
        async def fetch(_target: Target) -> Fetched:
            return replace(self.fetched, is_for_all=True)

        around = Surroundings(
            rooms=ROOMS,
            is_offline=True,
            warn=_ignore,
            tell=_note,
            render=render_report,
            report=_ignore,
            leave=_ignore,
            make_tls=ssl.create_default_context,
            fetch=fetch,
            find_names=_names_offline,
        )
        return Proxy(around)

    def stream_for(self, target: str) -> _ReplayedFlow | None:
        """Return the open stream that answers a client of the older transport."""
        return next((flow for flow in self._flows if flow.endpoint == target), None)

    async def _settle(self) -> None:
        """Let all tasks run until they only wait for the next step."""
        news = True
        while news:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            found = [flow.look_at_upstream() for flow in self._flows]
            news = any(found)


def _note(_site: str, judged: Judged) -> None:
    """Note a verdict with the flow that it is about."""
    if isinstance(judged.origin, Exchange) and isinstance(judged.origin.down, _ReplayedFlow):
        sentence = describe(judged.verdict, judged.snapshot)
        judgement = Judgement(
            judged.message,
            judged.verdict,
            sentence,
            tuple(_rules_in(judged)),
            tuple(_reported_of(judged)),
            tuple(_things_in(judged)),
        )
        judged.origin.down.judgements.append(judgement)


def _rules_in(judged: Judged) -> Iterator[str]:
    for one in judged.each:
        for verdict in (one.verdict, one.would):
            if verdict and not isinstance(verdict, Forward) and verdict.reason.rule:
                yield verdict.reason.rule


def _things_in(judged: Judged) -> Iterator[tuple[str, bool]]:
    for one in judged.each:
        reason = None if isinstance(one.verdict, Forward) else one.verdict.reason
        if reason is not None and reason.thing != TOOL:
            yield from (
                (f"{reason.thing} {name}", reason.why is Why.DENIED) for name in reason.tools
            )


def _reported_of(judged: Judged) -> Iterator[Reported]:
    for one in judged.each:
        message, asked = one.message, one.exchange
        if one.would is None or isinstance(one.would, Forward):
            continue
        is_response = isinstance(message, Response)
        method = asked.method if asked else getattr(message, "method", "?")
        lines = describe_reported(one.would, one.snapshot).split("\n")
        yield Reported(
            method=method,
            tool=asked.tool if asked else None,
            of_answer=is_response,
            verdict=reported_word(one.would),
            why=one.would.reason.why.value,
            text="; ".join(line.strip() for line in lines),
        )


def _answer(exchange: Exchange) -> None:
    assert isinstance(exchange.down, _ReplayedFlow)
    exchange.connected(exchange.down.upstream)


class _RecordedPeer(Upstream):
    """The upstream of one exchange; it says what it is told to say."""

    def __init__(self) -> None:
        super().__init__(write=_ignore, abort=_nothing, hold=_ignore, idle=_nothing)
        self.asked: bytes | None = None
        """The body of the request that came."""

    def begin(self, exchange: Exchange, *, head: bytes, method: str, body: bytes) -> None:
        self._exchange, self.asked = exchange, body

    def say_head(self, status: int, fields: Fields) -> None:
        self._say(lambda exchange: exchange.on_head(AnswerHead(status, b"", _kept(fields))))

    def say(self, data: bytes) -> None:
        """Send the next part of the answer."""
        if data:
            self._say(lambda exchange: exchange.on_data(data))

    def end(self) -> None:
        exchange = self._exchange
        if exchange is not None:
            self._release()
            exchange.on_end()

    def _say(self, take: Callable[[Asking], None]) -> None:
        if (exchange := self._exchange) is not None:
            try:
                take(exchange)
            except Exception as error:
                self._fail(exchange, error)


class _ReplayedFlow(InnerClient):
    """One recorded flow, and its replay; for the engine it is the client."""

    def __init__(self, replay: _Replay, number: int, recorded: RecordedFlow) -> None:
        super().__init__()
        self.recorded = recorded
        self.judgements: list[Judgement] = []
        self.upstream = _RecordedPeer()
        self.endpoint = endpoint_in(recorded.said)
        self._replay = replay
        self._number = number
        self._exchange: Exchange | None = None
        self._reached: bytes | None = None
        self._said = bytearray()
        self._is_guess = False
        self._parser = EventParser()

    def steps(self) -> Iterator[_Step]:
        """Yield what happens; nothing comes before what it follows, whatever its time says."""
        flow, said = self.recorded, self.recorded.said
        at = flow.at
        yield _Step(at, self._number, self._ask)
        if said is None:
            return
        if said.is_event_stream:
            at = max(at, said.at)
            yield _Step(at, self._number, partial(self._begin, said))
            for chunk in said.chunks:
                at = max(at, chunk.at)
                yield _Step(at, self._number, partial(self._say, chunk.data))
        if said.ended is not None:
            yield _Step(max(at, said.ended), self._number, partial(self._finish, said))

    def turn(self) -> RecordedTurn:
        flow, answer = self.recorded, self.answer
        return RecordedTurn(
            head=flow.head,
            asked=flow.body,
            reached=self._reached,
            said=bytes(self._said),
            is_guess=self._is_guess,
            status=answer.status if answer else 0,
            heard=bytes(self.body),
            content_type=answer.get(b"content-type") if answer else "",
            judgements=tuple(self.judgements),
        )

    # The client

    def _ask(self) -> None:
        flow = self.recorded
        host = (b"host", (flow.host or "unknown.invalid").encode())
        head = RequestHead(flow.head.method, flow.head.target, (host, *_kept(flow.head.headers)))
        self._exchange = Exchange(self._replay.site, self, head)
        self.ask(self._exchange, flow.body)

    def leave(self) -> None:
        if self._exchange is not None:
            self._exchange.client_left()

    # The upstream

    def look_at_upstream(self) -> bool:
        """Check whether the request has reached the upstream; answer it if the recording cannot."""
        if self._exchange is None or self._reached is not None:
            return False
        self._reached = self.upstream.asked
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
        self.upstream.say(event)

    def _answer(self, status: int, body: bytes, fields: Fields = _JSON) -> None:
        self._said += body
        self.upstream.say_head(status, fields)
        if self.recorded.head.method != "HEAD" and status not in (204, 304):
            self.upstream.say(body)
        self.upstream.end()

    def _begin(self, said: Said) -> None:
        if self._reached is not None:
            self.upstream.say_head(said.status, said.headers)

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
            self.upstream.end()
        else:
            body = without_answers(said.body, self._unasked())
            self._answer(said.status, body, said.headers)

    def _unasked(self) -> set[str]:
        """Return the ids of requests that did not reach the upstream in this replay."""
        if self.endpoint:
            return self._replay.unasked.get(self.endpoint, set())
        return ids_asked(self.recorded.body) - ids_asked(self._reached or b"")


async def _names_offline(url: str) -> UpstreamNames:
    """Like ``find_names`` but without any look-up: a replay uses no network."""
    return UpstreamNames(url)


def _ignore(_text: object) -> None:
    pass


def _nothing() -> None:
    pass


def _kept(fields: Fields) -> Fields:
    """Leave out what frames a message, and the names that only HTTP/2 has."""
    return tuple(
        [
            field
            for field in fields
            if field[0].lower() not in _OURS_TO_SAY and not field[0].startswith(b":")
        ]
    )


def _texts(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _plain(recording: Recording) -> str:
    """Return the upstream's URL without TLS, which a replay does not need."""
    upstream = recording.flows[0].upstream if recording.flows else "http://localhost:80"
    return "http://" + upstream.partition("://")[2]
