"""What the audit log says of a message: one entry for each that is logged or reviewed.

A request that is forwarded is entered when its answer has come, with the time that took; one that
we refuse or answer ourselves, at once. What is never answered is entered at the end.

Entries are made while messages wait, so little is done for each, and nothing twice.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.observers.audit.classes import Class, class_of
from mcp_tool_filter.observers.audit.contents import Arguments, Contents, redacted
from mcp_tool_filter.observers.audit.entry import Entry, Later, Timestamps
from mcp_tool_filter.observers.audit.words import LONGEST, pattern_of, subject_of, verdict_word
from mcp_tool_filter.policy.exchange import Exchange
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import Notification, Request, Response

if TYPE_CHECKING:  # most processes have no rules
    from mcp_tool_filter.policy.rule_effects import WriteLog

VERSION = 1
_MOST_OPEN = 10_000
_LONGEST_HELD = 16 * 1024  # characters of arguments that wait for an answer


class Auditor:
    """Makes entries of what it observes, and gives them to ``write``."""

    def __init__(
        self,
        write: Callable[[Entry], None],
        *,
        instance: str,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        client_of: Callable[[object], str] = lambda _origin: "",
        flow_of: Callable[[object], str] = lambda _origin: "",
        upstream_of: Callable[[object], str] | None = None,
        arguments: Arguments = Arguments.HASH,
        includes_passed: bool = False,
    ) -> None:
        """``client_of`` names the client behind a message's origin, such as its address.

        ``flow_of`` names what the host calls a message's flow; ``upstream_of`` the upstream, where
        there are many. ``includes_passed`` makes entries of messages of class pass, too.
        """
        self._write = write
        self._instance = instance
        self._now = now
        self._clock = clock
        self._client_of = client_of
        self._flow_of = flow_of
        self._upstream_of = upstream_of
        self._contents = Contents(arguments)
        self._includes_passed = includes_passed
        self._timestamps = Timestamps()
        self._open: OrderedDict[int, tuple[Exchange, Entry, float]] = OrderedDict()

    def note(self, judged: Judged) -> None:
        """Observe a message and its verdict."""
        for one in judged.members or (judged,):
            match one.message:
                case Response():
                    self._note_answer(one, one.message)
                case Request() | Notification():
                    self._note_request(one, one.message)
                case _ if not isinstance(one.verdict, Forward):
                    self._write(self._unread(one))

    def note_log(self, effect: WriteLog) -> None:
        """Enter what a rule has logged."""
        session = effect.session
        entry: Entry = {
            "v": VERSION,
            "time": self._timestamps.write(self._now()),
            "instance": self._instance,
            "event": "rule",
            "level": effect.level,
            "rule": effect.rule,
            "session": self._contents.hash_of_name(session) if session else None,
            "message": redacted(effect.message),
        }
        if effect.method is not None:
            entry["method"] = shown(effect.method[:LONGEST])
        if effect.tool is not None:
            entry["tool"] = shown(effect.tool[:LONGEST])
        if effect.id is not None:
            entry["id"] = effect.id[:LONGEST]
        self._write(entry)

    def close(self) -> None:
        """Enter what has not been answered."""
        while self._open:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        _, (_, entry, _) = self._open.popitem(last=False)
        entry["answered"] = False
        self._write(entry)

    def _note_request(self, judged: Judged, message: Request | Notification) -> None:
        kind = class_of(message.method)
        verdict, exchange = judged.verdict, judged.exchange
        if kind is Class.PASS and not (self._includes_passed or _is_refused(verdict)):
            return
        now = self._clock()
        entry = self._entry(judged, message, kind)
        self._add_verdict(entry, judged, now)
        if message.params and (
            arguments := self._contents.shown(message.place, message.params)
        ):
            entry["arguments"] = arguments
            if type(arguments) is Later and arguments.size > _LONGEST_HELD:
                arguments.made()  # the answer may take long, or never come
        if type(message) is Request and exchange and isinstance(verdict, (Forward, Rewrite)):
            self._open[id(exchange)] = (exchange, entry, now)
            if len(self._open) > _MOST_OPEN:
                self._give_up_oldest()
        else:
            self._write(entry)

    def _note_answer(self, judged: Judged, message: Response) -> None:
        exchange = judged.exchange
        opened = self._open.pop(id(exchange), None) if exchange else None
        if opened is None:
            return
        _, entry, sent = opened
        place, verdict = message.place, judged.verdict
        entry["answered"] = True
        entry["answer_bytes"] = judged.size or place.end - place.start
        entry["upstream_ms"] = round((self._clock() - sent) * 1000, 3)
        if message.result is None:
            entry["error_code"] = _error_code(message)
        elif result := self._contents.shown(place, message.result):
            entry["result"] = result
        if not isinstance(verdict, Forward):
            entry["answer_verdict"] = verdict_word(verdict)
            entry["answer_why"] = verdict.reason.why.value
            if drift := verdict.reason.drift:
                entry["drift"] = len(drift)
            if verdict.reason.why is Why.HIDDEN:
                entry["saved_bytes"] = judged.snapshot.denied_bytes
        self._write(entry)

    def _entry(self, judged: Judged, message: Request | Notification, kind: Class) -> Entry:
        entry = self._head(judged)
        entry["method"] = shown(message.method[:LONGEST])
        entry["class"] = str(kind)
        if type(message) is Request:
            entry["id"] = message.id[:LONGEST]
        if subject := subject_of(message):
            what, name = subject
            entry[what] = name
        return entry

    def _unread(self, judged: Judged) -> Entry:
        """Enter a message that nobody could read."""
        entry = self._head(judged)
        entry["class"] = Class.LOG.value
        self._add_verdict(entry, judged, self._clock())
        return entry

    def _head(self, judged: Judged) -> Entry:
        client, origin = judged.client, judged.origin
        session = client.session.id if client.session else None
        revision = client.revision  # which is what the upstream says
        entry: Entry = {
            "v": VERSION,
            "time": self._timestamps.write(self._now()),
            "instance": self._instance,
            "session": None if session is None else self._contents.hash_of_name(session),
            "client": self._client_of(origin) if origin is not None else "",
            "from": str(judged.direction),
            "transport": str(client.via),
            "revision": None if revision is None else shown(revision),
            "bytes": judged.size,
        }
        if client.credential:
            entry["client"] = f"{entry['client']}#{self._contents.hash_of_name(client.credential)}"
        if origin is not None and (flow := self._flow_of(origin)):
            entry["flow"] = flow
        if self._upstream_of and (upstream := self._upstream_of(origin)):
            entry["upstream"] = upstream
        return entry

    def _add_verdict(self, entry: Entry, judged: Judged, now: float) -> None:
        verdict, exchange = judged.verdict, judged.exchange
        entry["verdict"] = verdict_word(verdict)
        if exchange:
            entry["own_ms"] = round(max(0.0, now - exchange.asked_at) * 1000, 3)
        if isinstance(verdict, Forward):
            return
        reason = verdict.reason
        if reason.why in (Why.CACHED, Why.HIDDEN):
            entry["saved_bytes"] = judged.snapshot.denied_bytes
        entry["why"] = reason.why.value
        if reason.rule:
            entry["rule"] = reason.rule
        if pattern := pattern_of(reason, judged.snapshot):
            entry["pattern"] = pattern


def _is_refused(verdict: Verdict) -> bool:
    return isinstance(verdict, Reply | Drop) and verdict.reason.why is not Why.CACHED


def _error_code(message: Response) -> int | None:
    try:
        code = orjson.loads(message.place.raw)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, int) else None
