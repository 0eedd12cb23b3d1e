"""Make the audit log's entries: one for each message that is logged or reviewed.

A forwarded request is logged when its answer has come, with the time that took; a request that we
refuse or answer ourselves is logged at once. Unanswered requests are logged at the end.

While a message waits, we only note that it came. Soon after, we make the entries of many messages
together: alone, an entry takes three times as long, because the processor's caches are cold.

The method decides the class of a message:

>>> [class_of_method(name).value for name in ("ping", "tools/list", "tools/call", "x.acme/custom")]
['pass', 'log', 'review', 'log']

``AuditLine`` declares every member of a line once; ``docs/audit-line.schema.json`` derives from it
(see ``schema``). A new member is declared there, and set below.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, Required, TypedDict, cast

from mcp_tool_filter.core.conversation.policy_in_force import Judged, PlainCall
from mcp_tool_filter.core.messages.messages import (
    Notification,
    Place,
    Request,
    Response,
    UnreadPlace,
    parse_message,
)
from mcp_tool_filter.core.messages.scan import Value
from mcp_tool_filter.core.messages.sizes import MANY, NAME
from mcp_tool_filter.core.policy.situation import Client, Direction, RpcExchange, Via
from mcp_tool_filter.core.policy.snapshot import Snapshot, is_about_lock
from mcp_tool_filter.core.policy.snapshot import shown as shown_name
from mcp_tool_filter.core.policy.verdict import TOOL, Drop, Forward, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.core.process.sentences import CLIENT_NAME, Once, verdict_word
from mcp_tool_filter.core.process.statistics import is_tool_error
from mcp_tool_filter.rooms.audit.contents import Arguments, Content, Contents, redacted
from mcp_tool_filter.rooms.audit.entry import (
    LONGEST_SHOWN,
    Entry,
    LazyValue,
    ShownEntry,
    Timestamps,
    caller_of,
    milliseconds,
)
from mcp_tool_filter.rooms.audit.facts import (
    client_name_in,
    error_in,
    facts_about,
    problem_in,
    subject_of,
)
from mcp_tool_filter.rooms.audit.open_requests import OpenRequests, RequestKey, key_of
from mcp_tool_filter.rooms.secrets.finder import LOOK_AHEAD

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.effects import WriteLog

log = logging.getLogger(__name__)

_MOST_NOTED = 64  # messages; their entries take about half a millisecond
_LONGEST_NOTED = 4096  # bytes of a message

type Noted = tuple[Judged, Verdict, float, float]
"""A message as observed, its verdict then, and the time by both clocks."""
type OriginOf = Callable[[object], Mapping[str, str]]
"""Names the ``client`` behind an origin, what the host calls its ``flow``, and where there are many
the ``upstream`` and the ``server`` of the config file."""
type Soon = Callable[[Callable[[], None]], object]
"""Calls a function in a moment, in the same thread."""


class Class(StrEnum):
    PASS = "pass"
    """Not in the audit log."""
    LOG = "log"
    REVIEW = "review"
    """A policy decides on it."""


_PASS = frozenset({"initialize", "initialized", "ping", "server/discover"})
_REVIEW = frozenset({"tools/call", "resources/read", "sampling/createMessage"})


def class_of_method(method: str) -> Class:
    """Return the class of a request or a notification; a response belongs to its request."""
    if method in _REVIEW:
        return Class.REVIEW
    if method in _PASS or method.startswith("notifications/"):
        return Class.PASS
    return Class.LOG


# Each message asks for the same values, and a cache hit runs no Python code. A client chooses what
# they are asked, and they keep it: cut it first.
class_of, shown = lru_cache(1000)(class_of_method), lru_cache(1000)(shown_name)
_WORDS = {word: str(word) for word in (*Direction, *Via, *Class)}

VERSION: Final = 1
AuditLine = TypedDict(
    "AuditLine",
    {
        "v": Required[Literal[1]],
        "time": Required[Annotated[str, "UTC, with milliseconds"]],
        "prev": Annotated[
            str,
            {"pattern": "^[0-9a-f]{64}$"},
            "SHA-256 of the line before, without its line end",
        ],
        "event": Annotated[
            Literal["dropped", "torn", "rule"],
            "Not a message: lines that could not be written, a line that a crash has cut off, or a"
            " log action of a rule",
        ],
        "count": Annotated[int, "number of dropped lines"],
        "instance": Annotated[str, "a random name of the process"],
        "flow": Annotated[str, "mitmproxy's id of the flow"],
        "upstream": Annotated[
            str,
            "the URL of the MCP endpoint without its query, where there are several: in run, in"
            " other forward proxies, and with several reverse modes",
        ],
        "server": Annotated[str, "the server's name in the config file: in serve"],
        "exposed": Annotated[
            str,
            "what the client calls the tool, if not by its name: at /mcp, in profiles, by edits",
        ],
        "session": Annotated[
            str | None,
            "a keyed hash of the session's id or, where a transport has none, of its number in this"
            " process",
        ],
        "client": Annotated[str, "address, and after # a keyed hash of the credentials"],
        "client_name": Annotated[str, "the name that the client gives itself"],
        "from": Annotated[str, {"enum": [*Direction]}],
        "transport": Annotated[str, {"enum": [*Via]}],
        "revision": str | None,
        "id": Annotated[str, "exactly as in the message"],
        "method": str,
        "tool": str,
        "uri": str,
        "prompt": Annotated[str, "the prompt that is asked for, if it is known"],
        "resource": Annotated[str, "the resource that is asked for, if it is known"],
        "skill": Annotated[str, "the skill that is asked for, if it is known"],
        "class": Annotated[str, {"enum": ["log", "review", "pass"]}],
        "verdict": Annotated[
            str, {"enum": ["forwarded", "changed", "answered", "refused", "dropped"]}
        ],
        "why": str,
        "detail": Annotated[
            str, "of a request that its head forbids: Host, Origin, path and so on"
        ],
        "rule": str,
        "pattern": Annotated[
            str,
            "the pattern that hides the tool, or the flag: --read-only, --deny-hint destructive",
        ],
        "bytes": int,
        "answer_bytes": int,
        "answered": bool,
        "answer_verdict": str,
        "answer_why": Annotated[
            str,
            "why the answer was changed; or why there is none: cancelled, client_left,"
            " upstream_failed",
        ],
        "answer_rule": Annotated[str, "the rule that has changed or refused the answer"],
        "status": Annotated[
            int, "of HTTP, where the upstream has answered with an HTTP error only"
        ],
        "lock": Annotated[list[str], "what the lock hides of the list, and why; each tool once"],
        "drift": int,
        "hidden": Annotated[int, "how many prompts, resources or skills an answer has lost"],
        "upstream_ms": float,
        "own_ms": float,
        "saved_bytes": int,
        "error_code": int | None,
        "tool_error": Annotated[
            bool,
            "the tool says that it has failed (isError); what results over some 16 KB say is not"
            " read",
        ],
        "arguments": Annotated[
            Content | LazyValue,
            "the request's params; those of a call have the tool's name in them",
        ],
        "result": Content | LazyValue,
        "shadow": Annotated[
            Literal[True],
            "nothing was enforced: verdict, why, rule, pattern and the members of the answer say"
            " what would have happened",
        ],
        "level": Annotated[
            str, {"enum": ["debug", "info", "warn", "error"]}, "the level of a log action"
        ],
        "message": Annotated[str, "the message of a log action"],
    },
    total=False,
)
"""A line of the log. Later versions may add members; existing members keep their meaning."""
type _Thing = Literal["prompt", "resource", "skill"]
type _Subject = Literal["tool", "uri", "prompt"]
_OF_THE_ORIGIN: tuple[Literal["flow", "upstream", "server", "exposed"], ...] = (
    "flow", "upstream", "server", "exposed",
)  # fmt: skip
_LONGEST_HELD = 4096  # characters of a request that waits for its answer


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why a request will not be answered."""

    why: str = ""
    status: int | None = None
    """The HTTP status, if the upstream has answered nothing else."""


type EndOf = Callable[[object, Client, float], Unanswered | None]
"""Returns why a request will not be answered (given its origin, client and age in seconds), or
None."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What entries are made of, and what they say."""

    origin_of: OriginOf = lambda _origin: {}
    arguments: Arguments = Arguments.HASH
    with_passed: bool = False
    """Also messages of class pass have entries."""
    for_people: bool = False
    """They are ``ShownEntry``."""
    with_calls: bool = False
    """These have arguments and results."""


class OpenRequest(NamedTuple):
    """A request without an answer yet. It references the objects that its keys are made of."""

    exchange: RpcExchange | PlainCall
    kept: Noted | AuditLine | PlainCall
    """The message as noted, or already its entry."""
    since: float
    origin: object
    client: Client
    by_id: RequestKey


class Auditor:
    """Makes entries from the messages it observes, and passes them to ``write``."""

    def __init__(
        self,
        write: Callable[[Entry], None],
        wanted: Wanted,
        *,
        instance: str,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        soon: Soon | None = None,
    ) -> None:
        """Entries are made ``soon``, or at once."""
        self._write = write
        self._wanted = wanted
        self._instance = instance
        self._now = now
        self._clock = clock
        self._contents = Contents(wanted.arguments)
        self._names: dict[str, str] = {}
        self._timestamps = Timestamps()
        self._soon = soon
        self._noted: list[Noted] = []
        self._is_due = False
        self._has_failed = False
        self._open: OpenRequests[OpenRequest] = OpenRequests()
        self._once = Once()

    def note(self, judged: Judged) -> None:
        """Observe a message and its verdict."""
        now, clock = self._now(), self._clock()
        self._noted += [(member, member.verdict, now, clock) for member in judged.each]
        is_much = judged.size > _LONGEST_NOTED or len(self._noted) >= _MOST_NOTED
        if self._soon is None or is_much:
            self._flush()
        elif not self._is_due:
            self._is_due = True
            self._soon(self._flush_when_due)

    def _flush_when_due(self) -> None:
        self._is_due = False
        self._flush()

    def _flush(self) -> None:
        """Make the entries of what was noted. An error here disturbs no message."""
        noted, self._noted = self._noted, []
        for observed in noted:
            try:
                self._enter(observed)
            except Exception:
                self._note_failure()

    def _note_failure(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.exception("cannot report what happened to a message")

    def _enter(self, noted: Noted) -> None:
        judged, verdict, _, _ = noted
        message = judged.message
        if isinstance(message, Response):
            self._enter_answer(noted, message)
        elif isinstance(message, (Request, Notification)):
            self._enter_request(noted, message)
        elif not isinstance(verdict, Forward):  # the message could not be read
            self._enter_unreadable(noted)
        if judged.would is not None and not isinstance(verdict, Forward):
            self._enter_reported(judged, judged.would)

    def note_log(self, effect: WriteLog) -> None:
        """Log what a rule has logged."""
        self._flush()  # of earlier messages
        entry = self._rule_event()
        entry["level"], entry["rule"] = effect.level, effect.rule
        entry["session"] = self._contents.hash_of_name(effect.session) if effect.session else None
        entry["message"] = redacted(effect.message)
        if effect.method is not None:
            entry["method"] = shown(effect.method[:NAME])
        if effect.tool is not None:
            entry["tool"] = shown(effect.tool[:NAME])
        if effect.id is not None:
            entry["id"] = effect.id[:NAME]
        if effect.shadow:
            entry["shadow"] = True
        self._write(entry)

    def _enter_reported(self, judged: Judged, would: Verdict) -> None:
        """Log what a rule that only reports would have done to a message that another one
        decided."""
        entry = self._rule_event()
        entry["session"] = self._session_of(judged.client)
        _add_facts(entry, would, judged.snapshot)
        entry["shadow"] = True
        if exchange := judged.exchange:
            entry["method"] = shown(exchange.method)
            if exchange.tool is not None:
                entry["tool"] = shown(exchange.tool[:NAME])
        self._write(entry)

    def _rule_event(self) -> AuditLine:
        time = self._timestamps.write(self._now())
        return {"v": VERSION, "time": time, "instance": self._instance, "event": "rule"}

    def _session_of(self, client: Client) -> str | None:
        """Return a hash of what identifies the session: its id, or its number if it has none."""
        if (session := client.session) is None:
            return None
        return self._contents.hash_of_name(session.id or f"{client.via} {session.serial}")

    def close(self) -> None:
        """Log the unanswered requests."""
        self._flush()
        while oldest := self._open.take_oldest():
            self._write_unanswered(oldest, Unanswered())

    def give_up(self, end_of: EndOf) -> None:
        """Enter what will not be answered any more; call this now and then."""
        self._flush()
        now = self._clock()
        for opened in self._open.all:
            if (end := end_of(opened.origin, opened.client, now - opened.since)) is not None:
                self._open.take(opened.exchange)
                self._write_unanswered(opened, end)

    def _write_unanswered(self, opened: OpenRequest, end: Unanswered) -> None:
        entry = self._entry_of(opened)
        entry["answered"] = False
        if end.why:
            entry["answer_why"] = end.why
        if end.status is not None:
            entry["status"] = end.status
        self._write(entry)

    # Plain calls. Here, too, an error disturbs no message.

    def plain_begins(self, call: PlainCall) -> None:
        try:
            by_id = key_of(call.client, call.id)
            opened = OpenRequest(call, call, call.sent_at, call, call.client, by_id)
            for forgotten in self._open.add(opened):
                self._write_unanswered(forgotten, Unanswered())
        except Exception:
            self._note_failure()

    def plain_ends(self, call: PlainCall) -> None:
        try:
            if opened := self._open.take(call):
                entry = self._answered(opened, self._clock())
                entry["answer_bytes"] = len(call.answer)
                if self._wanted.with_calls:
                    cast("ShownEntry", entry).result = _shown_later(_result_of, call.answer)
                self._write(entry)
        except Exception:
            self._note_failure()

    def plain_leaves(self, call: PlainCall, exchange: RpcExchange, origin: object) -> None:
        try:
            if opened := self._open.take(call):
                kept = self._plain_entry(call)
                self._open.add(opened._replace(exchange=exchange, kept=kept, origin=origin))
        except Exception:
            self._note_failure()

    # Messages

    def _enter_request(self, noted: Noted, message: Request | Notification) -> None:
        judged, verdict, _, clock = noted
        exchange = judged.exchange
        if message.method == "initialize":
            self._note_name(judged, message)
        if class_of(message.method[:NAME]) is Class.PASS:
            if isinstance(verdict, (Forward, Rewrite)) and (
                opened := self._open.take_cancelled(judged, message)
            ):  # the client no longer waits: the upstream need not answer
                self._write_unanswered(opened, Unanswered("cancelled"))
            if not (self._wanted.with_passed or _is_refused(judged.would or verdict)):
                return
        if exchange is None or exchange.id is None or isinstance(verdict, (Reply, Drop)):
            self._write(self._entry(noted))
            return
        kept: Noted | AuditLine = noted
        if len(message.place.text) > _LONGEST_HELD:  # the message, or its batch
            kept = self._entry(noted)
            if isinstance(arguments := kept.get("arguments"), LazyValue):
                arguments.made()  # make it now: the answer may take long, or never come
        by_id = key_of(judged.client, exchange.id)
        asked = OpenRequest(exchange, kept, clock, judged.origin, judged.client, by_id)
        for forgotten in self._open.add(asked):
            self._write_unanswered(forgotten, Unanswered())

    def _enter_answer(self, noted: Noted, message: Response) -> None:
        judged, verdict, _, clock = noted
        if judged.exchange and judged.exchange.method == "initialize":
            self._keep_name(judged, judged.exchange)
        opened = self._open.take_answered(judged, message)
        if opened is None:
            return
        place = message.place
        entry = self._answered(opened, clock)
        entry["answer_bytes"] = judged.size or place.end - place.start
        if message.result is None:
            entry["error_code"] = _code_in(place.raw)
        else:
            if is_tool_error(message):
                entry["tool_error"] = True
            if result := self._contents.shown(place, message.result):
                entry["result"] = result
        if self._wanted.for_people:
            self._show_answer(cast("ShownEntry", entry), message)
        is_shadow = isinstance(verdict, Forward) and judged.would is not None
        decided = judged.would if is_shadow and judged.would else verdict
        if not isinstance(decided, Forward):
            reason = decided.reason
            _add_facts(entry, decided, judged.snapshot, of="answer_")
            about_lock = [drift for drift in reason.drift if is_about_lock(drift)]
            if news := [drift for drift in about_lock if self._once.is_new(drift)]:
                entry["lock"] = news
            if others := len(reason.drift) - len(about_lock):
                entry["drift"] = others
            if reason.thing != TOOL:
                entry["hidden"] = len(reason.tools)
            if is_shadow:
                entry["shadow"] = True
            elif reason.thing == TOOL and reason.why is Why.HIDDEN:
                entry["saved_bytes"] = judged.snapshot.denied_bytes
        self._write(entry)

    def _show_answer(self, entry: ShownEntry, message: Response) -> None:
        if problem := problem_in(message):
            entry.problem = redacted(problem)
        if self._wanted.with_calls and message.result:
            entry.result = _beginning(message.place, message.result)

    def _enter_unreadable(self, noted: Noted) -> None:
        """Enter a message that cannot be read with the requests that it should have answered."""
        judged, verdict, _, clock = noted
        owed = list(self._open.take_unreadable(judged, verdict))
        for opened, text in owed:
            entry = self._answered(opened, clock)
            entry["error_code"] = _code_in(text)
            entry["answer_verdict"] = verdict_word(verdict)
            entry["answer_why"] = Why.INVALID.value
            self._write(entry)
        if not owed:
            self._write(self._entry(noted))

    def _answered(self, opened: OpenRequest, clock: float) -> AuditLine:
        entry = self._entry_of(opened)
        entry["answered"] = True
        entry["upstream_ms"] = milliseconds(clock - opened.since)
        return entry

    def _entry_of(self, opened: OpenRequest) -> AuditLine:
        kept = opened.kept
        if isinstance(kept, dict):
            return kept
        return self._entry(kept) if isinstance(kept, tuple) else self._plain_entry(kept)

    def _begun(
        self, client: Client, come_from: object, direction: Direction, now: float, size: int
    ) -> AuditLine:
        """Return what each entry begins with."""
        revision = client.revision  # as the upstream states it
        origin = self._wanted.origin_of(come_from)
        address = origin.get("client", "")
        if client.credential:
            address = f"{address}#{self._contents.hash_of_name(client.credential)}"
        entry: AuditLine = {
            "v": VERSION,
            "time": self._timestamps.write(now),
            "instance": self._instance,
            "session": self._session_of(client),
            "client": address,
            "from": _WORDS[direction],
            "transport": _WORDS[client.via],
            "revision": None if revision is None else shown(revision[:NAME]),
            "bytes": size,
        }
        for name in _OF_THE_ORIGIN:
            if value := origin.get(name):
                entry[name] = value
        return entry

    def _plain_entry(self, call: PlainCall) -> AuditLine:
        """Return the entry for a plain call: the same as for any forwarded call."""
        now = self._now() - (self._clock() - call.sent_at)
        entry = self._begun(call.client, call, Direction.FROM_CLIENT, now, len(call.body))
        entry["method"], entry["class"] = "tools/call", _WORDS[Class.REVIEW]
        entry["id"], entry["tool"] = call.id, shown(call.tool)
        entry["own_ms"] = milliseconds(call.sent_at - call.asked_at)
        entry["verdict"] = "forwarded"
        if name := _name_in(call.meta) or self._name_of(call.client, entry):
            entry["client_name"] = name
        if not self._wanted.for_people:
            return entry
        arguments = _shown_later(_params_of, call.body) if self._wanted.with_calls else None
        return cast("AuditLine", ShownEntry(entry, name, arguments))

    def _entry(self, noted: Noted) -> AuditLine:
        """Return the entry for a request or notification, or for an unreadable message."""
        judged, verdict, now, clock = noted
        message = judged.message
        entry = self._begun(judged.client, judged.origin, judged.direction, now, judged.size)
        if isinstance(message, (Request, Notification)):
            self._add_message(entry, message, judged.exchange)
        else:
            entry["class"] = "log"
        if exchange := judged.exchange:
            entry["own_ms"] = milliseconds(clock - exchange.asked_at)
        is_shadow = isinstance(verdict, Forward) and judged.would is not None
        decided = judged.would if is_shadow and judged.would else verdict
        if isinstance(decided, Forward):
            entry["verdict"] = "forwarded"
        else:
            _add_facts(entry, decided, judged.snapshot)
        if is_shadow:
            entry["shadow"] = True
        if not isinstance(decided, Forward):
            reason = decided.reason
            if reason.thing != TOOL:
                thing = cast("_Thing", reason.thing)
                entry[thing] = shown(reason.tools[0][:NAME]) if reason.tools else ""
            elif not is_shadow and reason.why in (Why.CACHED, Why.HIDDEN):
                entry["saved_bytes"] = judged.snapshot.denied_bytes
            if not is_shadow and reason.why is Why.FORBIDDEN and reason.detail:
                entry["detail"] = reason.detail
        name = self._name_of(judged.client, entry)
        arguments = None
        if isinstance(message, (Request, Notification)) and (params := message.params):
            meta = params.get("_meta")
            named = client_name_in(f'{{"_meta":{message.place.cut(meta)}}}') if meta else ""
            name = named or name
            if self._wanted.with_calls:
                arguments = _beginning(message.place, params)
        if name:
            entry["client_name"] = name
        if not self._wanted.for_people:
            return entry
        return cast("AuditLine", ShownEntry(entry, name, arguments))  # the same members

    def _name_of(self, client: Client, entry: AuditLine) -> str:
        """Return the name that a client gave itself when it began."""
        name = str(client.session.notes.get(CLIENT_NAME, "")) if client.session else ""
        return name or self._names.get(caller_of(entry), "")

    def _note_name(self, judged: Judged, message: Request | Notification) -> None:
        """Note the name in a request that begins a session; the session is known later."""
        exchange, params = judged.exchange, message.params
        if exchange is not None and params is not None:
            exchange.notes = exchange.notes or {}
            exchange.notes[CLIENT_NAME] = client_name_in(message.place.cut(params))

    def _keep_name(self, judged: Judged, exchange: RpcExchange) -> None:
        name = (exchange.notes or {}).get(CLIENT_NAME)
        if not name:
            return
        if judged.client.session is not None:
            judged.client.session.notes[CLIENT_NAME] = name
        elif len(self._names) < MANY:
            address = self._wanted.origin_of(judged.origin).get("client", "")
            caller = caller_of({"client": address, "transport": _WORDS[judged.client.via]})
            self._names[caller] = str(name)

    def _add_message(
        self, entry: AuditLine, message: Request | Notification, exchange: RpcExchange | None
    ) -> None:
        method = message.method[:NAME]
        entry["method"] = shown(method)
        entry["class"] = _WORDS[class_of(method)]
        if isinstance(message, Request):
            entry["id"] = message.id[:NAME]
        if exchange and exchange.tool is not None:
            entry["tool"] = shown(exchange.tool[:NAME])
            if exchange.exposed:
                entry.setdefault("exposed", shown(exchange.exposed[:NAME]))
        elif subject := subject_of(message):
            kind, name = subject
            entry[cast("_Subject", kind)] = name
        if message.params and (part := self._contents.shown(message.place, message.params)):
            entry["arguments"] = part


def _add_facts(entry: AuditLine, verdict: Verdict, snapshot: Snapshot, of: str = "") -> None:
    """Add a verdict and its reason; with ``of``, those of the answer, without the pattern."""
    facts = facts_about(verdict, snapshot)
    if of:
        facts = {f"{of}{name}": fact for name, fact in facts.items() if name != "pattern"}
    entry |= cast("AuditLine", facts)


def _beginning(place: Place, part: Value) -> str:
    """Return what is needed of a part of a message to show its beginning without secrets."""
    needed = LONGEST_SHOWN + LOOK_AHEAD
    if isinstance(place, UnreadPlace):
        most = 4 * needed  # bytes: a character has up to four
        return bytes(place.raw_of(part)[:most]).decode("utf-8", "replace")[:needed]
    return place.text[part.start : min(part.end, part.start + needed)]


def _shown_later(of: Callable[[bytes], str], raw: bytes) -> str | Callable[[], str]:
    """Return what finds the beginning of a part of a plain call when somebody looks at it; of a
    long one, the beginning itself, which takes less memory."""
    return partial(of, raw) if len(raw) <= LONGEST_SHOWN else of(raw)


@lru_cache(maxsize=64)  # a client says the same in each call
def _name_in(meta: bytes) -> str:
    return client_name_in(f'{{"_meta":{meta.decode()}}}') if meta else ""


def _params_of(call: bytes) -> str:
    message = parse_message(call)
    if not isinstance(message, Request) or message.params is None:
        raise TypeError("a plain call without params")
    return _beginning(message.place, message.params)


def _result_of(answer: bytes) -> str:
    message = parse_message(answer)
    if not isinstance(message, Response) or message.result is None:
        raise TypeError("a plain answer without a result")
    return _beginning(message.place, message.result)


def _is_refused(verdict: Verdict) -> bool:
    return isinstance(verdict, Reply | Drop) and verdict.reason.why is not Why.CACHED


def _code_in(answer: bytes) -> int | None:
    code, _ = error_in(answer)
    return code if isinstance(code, int) else None
