"""What the audit log says of a message: one entry for each that is logged or reviewed.

A request that is forwarded is entered when its answer has come, with the time that took; one that
we refuse or answer ourselves, at once. What is never answered is entered at the end.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, assert_never

import orjson

from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.observers.audit.classes import Class, class_of
from mcp_tool_filter.observers.redaction.finder import redact
from mcp_tool_filter.policy.exchange import Client, Exchange
from mcp_tool_filter.policy.snapshot import Snapshot, shown
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import Notification, Request, Response

if TYPE_CHECKING:  # most processes have no rules
    from mcp_tool_filter.policy.rule_effects import WriteLog

VERSION = 1
_MOST_OPEN = 10_000
_MOST_HASHES = 10_000
_LONGEST_TEXT = 256  # characters of a URI, a method, an id
_SHORT = 4096  # characters; to hash fewer takes less time than to keep them for later
_LONGEST_HELD = 16 * 1024  # characters of arguments that wait for an answer
_LONGEST_FULL = 64 * 1024  # characters of arguments or of a result that are entered in full

type Entry = dict[str, object]


class Arguments(StrEnum):
    """How much of arguments and results is entered."""

    NONE = "none"
    HASH = "hash"
    FULL = "full"
    """All of it, but what looks like a secret."""


class Later:
    """A part of an entry that takes time to make: it is made where the entry is written."""

    __slots__ = ("_made", "_make", "size")

    def __init__(self, make: Callable[[], Entry], size: int) -> None:
        self._make: Callable[[], Entry] | None = make
        self._made: Entry = {}
        self.size = size
        """Characters that it holds on to."""

    def made(self) -> Entry:
        if make := self._make:
            self._made, self._make = make(), None
        return self._made


def made(part: object) -> object:
    """Return what a writer of JSON asks for. Raises TypeError for what no entry may hold."""
    if isinstance(part, Later):
        return part.made()
    raise TypeError(f"an entry cannot hold {type(part).__name__}")


def caller_of(entry: Entry) -> str:
    """Return who has sent a message: a session, or where there is none, an address.

    The port is left out: clients of a stateless upstream may connect anew for each call.

    >>> caller_of({"session": "s", "client": "127.0.0.1:5000"})
    's'
    >>> caller_of({"client": "127.0.0.1:5000"}), caller_of({"client": "[::1]:5000#c"})
    ('127.0.0.1', '[::1] #c')
    """
    if session := entry.get("session"):
        return str(session)
    address, _, credential = str(entry.get("client") or "").partition("#")
    host = address.rpartition(":")[0] or address or str(entry.get("transport") or "none")
    return f"{host} #{credential}" if credential else host


@dataclass(slots=True)
class Auditor:
    """Makes entries of what it observes, and gives them to ``write``."""

    write: Callable[[Entry], None]
    instance: str
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] = lambda: 0.0
    client_of: Callable[[object], str] = lambda _origin: ""
    """Names the client behind a message's origin, such as its address."""
    flow_of: Callable[[object], str] = lambda _origin: ""
    """Names what the host calls a message's flow."""
    upstream_of: Callable[[object], str] | None = None
    """Names the upstream of a message, where there are many."""
    arguments: Arguments = Arguments.HASH
    includes_passed: bool = False
    """Make entries of messages of class pass, too."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """Of the hashes: equal texts in a file are seen to be equal, and nothing else is."""
    _open: OrderedDict[int, tuple[Exchange, Entry, float]] = field(default_factory=OrderedDict)
    _hashes: dict[str, str] = field(default_factory=dict)
    """Of sessions and credentials, which come again with each message."""

    def note(self, judged: Judged) -> None:
        """Observe a message and its verdict."""
        for one in judged.each:
            match one.message:
                case Response():
                    self._note_answer(one, one.message)
                case Request() | Notification():
                    self._note_request(one, one.message)
                case _ if not isinstance(one.verdict, Forward):
                    self.write(self._unread(one))

    def note_log(self, effect: WriteLog) -> None:
        """Enter what a rule has logged."""
        entry = self._moment() | {
            "event": "rule",
            "level": effect.level,
            "rule": effect.rule,
            "session": self._known_hash(effect.session) if effect.session else None,
            "message": redact(_cut(effect.message, _LONGEST_FULL)),
        }
        if effect.method is not None:
            entry["method"] = shown(effect.method[:_LONGEST_TEXT])
        if effect.tool is not None:
            entry["tool"] = shown(effect.tool[:_LONGEST_TEXT])
        if effect.id is not None:
            entry["id"] = effect.id[:_LONGEST_TEXT]
        self.write(entry)

    def close(self) -> None:
        """Enter what has not been answered."""
        while self._open:
            _, (_, entry, _) = self._open.popitem(last=False)
            self.write(entry | {"answered": False})

    def _note_request(self, judged: Judged, message: Request | Notification) -> None:
        kind = class_of(message.method)
        verdict = judged.verdict
        if kind is Class.PASS and not (self.includes_passed or _is_refused(verdict)):
            return
        entry = self._entry(judged, message, kind)
        exchange = judged.exchange
        if isinstance(message, Request) and exchange and isinstance(verdict, Forward | Rewrite):
            self._open[id(exchange)] = (exchange, entry, self.clock())
            arguments = entry.get("arguments")
            if isinstance(arguments, Later) and arguments.size > _LONGEST_HELD:
                arguments.made()  # the answer may take long, or never come
            if len(self._open) > _MOST_OPEN:
                _, (_, oldest, _) = self._open.popitem(last=False)
                self.write(oldest | {"answered": False})
        else:
            self.write(entry)

    def _note_answer(self, judged: Judged, message: Response) -> None:
        exchange = judged.exchange
        opened = self._open.pop(id(exchange), None) if exchange else None
        if opened is None:
            return
        _, entry, sent = opened
        entry["answered"] = True
        entry["answer_bytes"] = judged.size or message.place.end - message.place.start
        entry["upstream_ms"] = round((self.clock() - sent) * 1000, 3)
        if message.result is None:
            entry["error_code"] = _error_code(message)
        elif result := self._shown(message.place.cut(message.result)):
            entry["result"] = result
        if not isinstance(judged.verdict, Forward):
            entry["answer_verdict"] = verdict_word(judged.verdict)
            entry["answer_why"] = judged.verdict.reason.why.value
            if drift := judged.verdict.reason.drift:
                entry["drift"] = len(drift)
            if judged.verdict.reason.why is Why.HIDDEN:
                entry["saved_bytes"] = judged.snapshot.denied_bytes
        self.write(entry)

    def _entry(self, judged: Judged, message: Request | Notification, kind: Class) -> Entry:
        entry = self._head(judged)
        entry["method"] = shown(message.method[:_LONGEST_TEXT])
        entry["class"] = str(kind)
        if isinstance(message, Request):
            entry["id"] = message.id[:_LONGEST_TEXT]
        entry.update(subject_of(message))
        entry.update(self._verdict_of(judged))
        if message.params and (arguments := self._shown(message.place.cut(message.params))):
            entry["arguments"] = arguments
        return entry

    def _unread(self, judged: Judged) -> Entry:
        """Enter a message that nobody could read."""
        return self._head(judged) | {"class": Class.LOG.value} | self._verdict_of(judged)

    def _head(self, judged: Judged) -> Entry:
        client, origin = judged.client, judged.origin
        id = client.session.id if client.session else None
        revision = client.revision  # which is what the upstream says
        entry: Entry = {
            "v": VERSION,
            "time": self._time(),
            "instance": self.instance,
            "session": None if id is None else self._known_hash(id),
            "client": self._client(client, origin),
            "from": str(judged.direction),
            "transport": str(client.via),
            "revision": None if revision is None else shown(revision),
            "bytes": judged.size,
        }
        if origin is not None and (flow := self.flow_of(origin)):
            entry["flow"] = flow
        if self.upstream_of and (upstream := self.upstream_of(origin)):
            entry["upstream"] = upstream
        return entry

    def _moment(self) -> Entry:
        return {"v": VERSION, "time": self._time(), "instance": self.instance}

    def _time(self) -> str:
        return self.now().isoformat(timespec="milliseconds")[: -len("+00:00")] + "Z"

    def _client(self, client: Client, origin: object) -> str:
        address = self.client_of(origin) if origin is not None else ""
        credential = f"#{self._known_hash(client.credential)}" if client.credential else ""
        return address + credential

    def _verdict_of(self, judged: Judged) -> Entry:
        verdict = judged.verdict
        entry: Entry = {"verdict": verdict_word(verdict)}
        if exchange := judged.exchange:
            entry["own_ms"] = round(max(0.0, self.clock() - exchange.asked_at) * 1000, 3)
        if isinstance(verdict, Forward):
            return entry
        reason = verdict.reason
        if reason.why in (Why.CACHED, Why.HIDDEN):
            entry["saved_bytes"] = judged.snapshot.denied_bytes
        entry["why"] = reason.why.value
        if reason.rule:
            entry["rule"] = reason.rule
        if pattern := pattern_of(reason, judged.snapshot):
            entry["pattern"] = pattern
        return entry

    def _shown(self, text: str) -> Entry | Later | None:
        """Return what may be entered of arguments or of a result; later, if that takes time."""
        if not text or self.arguments is Arguments.NONE:
            return None
        if self.arguments is Arguments.HASH and len(text) < _SHORT:
            return self._show(text)
        return Later(partial(self._show, text), len(text))

    def _show(self, text: str) -> Entry:
        raw = text.encode("utf-8", "surrogatepass")
        if self.arguments is Arguments.HASH:
            return {"hash": self._hash(raw), "bytes": len(raw)}
        return {"text": redact(_cut(text, _LONGEST_FULL)), "bytes": len(raw)}

    def _known_hash(self, text: str) -> str:
        if (known := self._hashes.get(text)) is None:
            if len(self._hashes) >= _MOST_HASHES:
                self._hashes.clear()
            known = self._hashes[text] = self._hash(text.encode("utf-8", "surrogatepass"))
        return known

    def _hash(self, raw: bytes) -> str:
        # Half of the digest: what is cut off keeps a text from being prolonged, as HMAC would.
        return hashlib.sha256(self.key + raw).hexdigest()[:32]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "…"


def _is_refused(verdict: Verdict) -> bool:
    return isinstance(verdict, Reply | Drop) and verdict.reason.why is not Why.CACHED


def verdict_word(verdict: Verdict) -> str:
    match verdict:
        case Forward():
            return "forwarded"
        case Rewrite():
            return "changed"
        case Reply(_, reason):
            return "answered" if reason.why in (Why.CACHED, Why.STORED) else "refused"
        case Drop():
            return "dropped"
        case unexpected:
            assert_never(unexpected)


def subject_of(message: Request | Notification) -> Entry:
    """Return the tool that a message calls, or the URI that it reads."""
    for method, member, name in _SUBJECTS:
        if message.method == method and message.params:
            value = message.params.get(member)
            if value is not None and value.text is not None:
                return {name: shown(value.text[:_LONGEST_TEXT])}
    return {}


_SUBJECTS = (
    ("tools/call", "name", "tool"),
    ("resources/read", "uri", "uri"),
    ("resources/subscribe", "uri", "uri"),
    ("prompts/get", "name", "prompt"),
)


def pattern_of(reason: Reason, snapshot: Snapshot) -> str | None:
    """Return the pattern that denies what was called."""
    found = (snapshot.denied.get(name) for name in reason.tools)
    return next((pattern.text for pattern in found if pattern), None)


def _error_code(message: Response) -> int | None:
    try:
        code = orjson.loads(message.place.raw)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, int) else None
