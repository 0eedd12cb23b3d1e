"""What a rule sees, and what comes of it.

A ``Subject`` is one message, the request that it answers, and its session. Parts of the message are
opened when a rule first reads them, and only then. A ``RulesOutcome`` says what happens to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from jsregex.cost import Budget
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    Notification,
    Place,
    Request,
    Response,
    Single,
    quote_harmlessly,
)
from mcp_tool_filter.core.messages.scan import Value
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.rooms.rules.fields import Document, Field
from mcp_tool_filter.rooms.rules.rule_effects import WriteCache

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.rules.chain import Stopwatch
    from mcp_tool_filter.rooms.rules.policy import Candidate

_NOWHERE = Place()


def passes(_message: Single) -> Verdict:
    return Forward()


class TooSlow(Exception):
    """Our own work on a message takes longer than the chain may take."""


@dataclass(slots=True, kw_only=True)  # not frozen, because each message needs one
class Circumstances:
    """What we know about a message besides its text."""

    from_client: bool = True
    session_id: str = ""
    claimed_session_id: str | None = None
    """The session id that the client sends, if the upstream has no sessions."""
    session_started: float = 0.0
    """By the same clock as ``now``."""
    session: dict[str, object] = field(default_factory=dict)
    """What users' own classes store about the session."""
    credentials: bytes = b""
    """Authorization, cookies and API keys, as the client sent them."""
    operator: Callable[[], bytes] = field(default=bytes, repr=False)
    """Returns the credentials that we add, given by the operator."""
    asker: Callable[[], bytes] = field(default=bytes, repr=False)
    """Returns all that an answer may depend on besides the message and the credentials."""
    upstream: str = ""
    """Origin and endpoint, so that caches of different upstreams stay separate."""
    filter: Callable[[Single], Verdict] = passes
    """The tool filter, which judges a message again after a rule has changed it."""
    limits: Limits = field(default_factory=Limits)
    is_answered: bool = False
    """True if the snapshot will answer this request."""
    is_carried: bool = False
    """True for a message inside another one, to which the default action applies already."""
    is_shadow: bool = False
    """True if the outcome is only reported: nothing waits, and nothing has an effect."""
    is_own_error: bool = False
    """True for an error with which a rule answers; method interceptors do not judge it."""
    origin: object = field(default=None, repr=False)
    """The host's own object for the message, passed on in effects."""


_NOTHING_KNOWN = Circumstances()


class Subject:
    """The current message, and the parts that rules have read."""

    __slots__ = (
        "_budget",
        "_documents",
        "_found",
        "about",
        "is_response",
        "message",
        "method",
        "possible",
        "request",
        "tool",
        "watch",
    )

    def __init__(
        self,
        message: Single,
        about: Circumstances | None = None,
        request: Request | Notification | None = None,
        budget: Budget | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        """``request`` is the request that a response answers, as it was forwarded.

        A changed message, or a member of a batch, shares its ``budget`` with others.
        """
        self._budget = budget
        self.watch = watch
        self.possible: Sequence[Candidate] | None = None
        """The rules that could match, once they have been looked up."""
        self.message = message
        self.about = about or _NOTHING_KNOWN
        self.is_response = isinstance(message, Response)
        self.request = message if not isinstance(message, Response) else request
        self.method = self.request.method if self.request else None
        self.tool = tool_in(self.request)
        self._found: dict[tuple[str, str], Sequence[Value]] = {}
        self._documents: dict[str, Document] = {}

    @property
    def budget(self) -> Budget:
        """The steps that patterns may still spend on this message."""
        if self._budget is None:
            self._budget = Budget()
        return self._budget

    @property
    def id(self) -> str | None:
        """The id as it was written; None for a notification."""
        return None if isinstance(self.message, Notification) else self.message.id

    @property
    def text(self) -> str:
        """The message as it was written."""
        place = self.message.place
        return place.text[place.start : place.end]

    def look(self) -> None:
        """Raise TooSlow if this message has taken too long."""
        if self.watch is not None:
            self.watch.look()

    def part(self, name: str) -> Value | None:
        """Return ``params``, ``result`` or ``error``, if there is one."""
        if name == "params":
            return self.request.params if self.request else None
        if not isinstance(self.message, Response):
            return None
        if name == "result" or self.message.result is not None:
            return self.message.result if name == "result" else None
        place = self.message.place
        document = self.document("error")
        error = document.open(Value(place.start, place.end)).get("error")
        return document.open(error) if error else None

    def document(self, part: str) -> Document:
        """Return the document that contains a part."""
        owner = "params" if part == "params" else "message"
        known = self._documents.get(owner)
        if known is None:
            place = self.message.place
            if owner == "params":
                place = self.request.place if self.request else _NOWHERE
            known = self._documents[owner] = Document(place.text)
        return known

    def find(self, part: str, field: Field) -> Sequence[Value]:
        """Return the values of a field. Raises Unjudgeable."""
        key = part, field.text
        values = self._found.get(key)
        if values is None:
            values = self.document(part).find(self.part(part), field.steps, field.outlines)
            self._found[key] = values
            self.look()
        return values


def tool_in(request: Request | Notification | None) -> str | None:
    """Return the called tool, if any."""
    if request is None or request.method != "tools/call" or request.params is None:
        return None
    name = request.params.named.get("name")
    return name.text if name else None


BLOCKED = -32001
UNCLEAR = -32600
NOT_CLEAR = "Invalid Request"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that replaces a message; ``data`` is JSON."""

    code: int
    message: str
    data: str | None
    rule: str
    action: str
    detail: str = ""
    """For observers; a client never sees it."""

    @classmethod
    def of_rule(
        cls, message: str, rule: str, action: str, more: str = "", detail: str = ""
    ) -> Refusal:
        """Return one with our own error code. The client learns which rule refused."""
        data = f"{{{_who_refuses(rule, action)}{more}}}"
        return cls(BLOCKED, message, data, rule, action, detail)

    def render(self, id: str | None) -> bytes:
        data = "" if self.data is None else f',"data":{self.data}'
        error = f'{{"code":{self.code},"message":{quote_harmlessly(self.message)}{data}}}'
        return f'{{"jsonrpc":"2.0","id":{id or "null"},"error":{error}}}'.encode()


@lru_cache(maxsize=1024)
def _who_refuses(rule: str, action: str) -> str:
    return f'"rule":{quote_harmlessly(rule)},"action":{quote_harmlessly(action)}'


@dataclass(slots=True)
class Evaluated:
    """A rule that was evaluated, for a trace."""

    rule: str
    conditions: list[tuple[str, bool]] = field(default_factory=list)
    asked: str = ""
    """The condition that is being evaluated; it stays here if it cannot be judged."""
    matched: bool = False
    done: list[str] = field(default_factory=list)
    is_interceptor: bool = False
    is_audit: bool = False


@dataclass(slots=True)
class RulesOutcome:
    """The outcome; ``message`` is the message after the rules' changes."""

    message: Single
    is_changed: bool = False
    refusal: Refusal | None = None
    filtered: Verdict | None = None
    """The tool filter's verdict on the changed message, unless it just passes."""
    cached: bytes | None = None
    """A stored result that answers the request."""
    stores: list[WriteCache] = field(default_factory=list)
    """Orders to store the result of this request, without the result."""
    done: list[str] = field(default_factory=list)
    """The rule of each action that was done."""
    matched: list[str] = field(default_factory=list)
    """The rules that matched."""
    left_out: list[str] = field(default_factory=list)
    """The actions with effects that were not done, because the rules are only evaluated."""
    audited: list[Verdict] = field(default_factory=list)
    """What rules with ``mode: audit`` would have done."""

    def to_verdict(self) -> Verdict:
        """Return the verdict on the message. (The caller answers with a cached result.)"""
        if self.refusal is not None:
            return self._refuse(self.refusal)
        if self.filtered is not None:
            return self.filtered
        if not (self.is_changed or self.left_out):
            return Forward()
        rules, detail = (", ".join(dict.fromkeys(names)) for names in (self.done, self.left_out))
        return Rewrite(self.message.place.raw, Reason(Why.CHANGED, detail=detail, rule=rules))

    def _refuse(self, refusal: Refusal) -> Verdict:
        detail = refusal.detail or refusal.message
        reason = Reason(Why.BLOCKED, detail=detail, rule=refusal.rule)
        match self.message:
            case Notification():
                return Drop(reason)
            case Request(id=id):
                return Reply(refusal.render(id), reason)
            case Response(id=id):
                return Rewrite(refusal.render(id), reason)
