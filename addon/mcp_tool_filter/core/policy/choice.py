r"""The user's choice of tools, and the one function that says what hides a tool.

A tool is exposed if (there is no allow pattern, or one matches) and (an exception matches, or (no
deny pattern matches and no hint hides it)), and if the lock, if there is one, agrees.

Hints are what a definition claims about its tool. What it does not say clearly counts as the worst
case, which is also the specification's default:

>>> cautious = Choice(hints=("read-only",))
>>> cautious.hiding("a", b'{"name":"a","annotations":{"readOnlyHint":true}}')
>>> cautious.hiding("a", b'{"name":"a","annotations":{"readOnlyHint":"true"}}').text
'--read-only'

While the definition is unknown, a hint cannot judge a name:

>>> cautious.hiding("a") is UNDECIDED
True
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import fold
from mcp_tool_filter.core.messages.scan import Value, scan
from mcp_tool_filter.core.policy.patterns import Pattern, in_any_case


class ApprovedTools(Protocol):
    """The tools that a person has approved, with their definitions."""

    @property
    def tools(self) -> Collection[str]:
        """The names."""

    def judge(self, name: str, definition: bytes) -> str | None:
        """Return what a tool lacks to be exposed, or None."""

    def problem_in(self, instructions: str | None) -> str:
        """Return the warning about the instructions of a server; empty if they are approved."""


class Vouching(Protocol):
    """The operator's word about tools: it counts more than what a definition claims."""

    def vouched(self, name: str, claims: Claims) -> Claims:
        """Return what counts of a tool with these claims."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What hides a tool, if that is not a deny pattern."""

    text: str
    """The flag that the user typed, if one hides it."""
    says: str


type Hider = Pattern | Cause

NOT_ALLOWED = Cause("", "matches no allow pattern")
UNDECIDED = Cause("", "its definition is not known yet")
"""The definition decides, and we do not have it."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a definition says of its tool; None if it does not say it clearly."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None

    @property
    def marks(self) -> str:
        """What people should know about the tool."""
        changes = self.read_only is not True
        marks = {
            "read-only": self.read_only,
            "destructive": changes and self.destructive,
            "open-world": self.open_world,
        }
        return ", ".join(mark for mark, is_said in marks.items() if is_said)


_UNCLEAR = Claims()
_USUAL = frozenset({
    "name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta", "icons",
    "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint",
})  # fmt: skip
"""Keys that nobody takes for one another."""
_BOOLEANS = {"true": True, "false": False}
READ_ONLY = "read-only"
_HIDES: dict[str, Callable[[Claims], bool]] = {
    READ_ONLY: lambda says: says.read_only is not True,
    "destructive": lambda says: says.read_only is not True and says.destructive is not False,
    "open-world": lambda says: says.open_world is not False,
    "not-idempotent": lambda says: says.read_only is not True and says.idempotent is not True,
}
_FLAGS = {hint: f"--{hint}" if hint == READ_ONLY else f"--deny-hint {hint}" for hint in _HIDES}
_CAUSES = {hint: Cause(flag, f"denied by {flag}") for hint, flag in _FLAGS.items()}


def says_nothing(definition: bytes) -> bool:
    """Tell whether a definition has no annotation that a hint could judge."""
    return claims_in(definition) == _UNCLEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    deny: tuple[Pattern, ...] = ()
    allow: tuple[Pattern, ...] = ()
    exceptions: tuple[Pattern, ...] = ()
    """They spare tools from the deny patterns and the hints."""
    allow_too: tuple[Pattern, ...] = ()
    """A second allow list: a tool must match both."""
    hints: tuple[str, ...] = ()
    """The hints that hide tools, as users call them."""
    vouching: Vouching | None = None
    lock: ApprovedTools | None = None
    """What a person has approved: no other tool is exposed."""

    @property
    def hides_nothing(self) -> bool:
        return not (self.deny or self.allow or self.hints or self.lock)

    @property
    def needs_definitions(self) -> bool:
        """True if a name alone may not be enough to judge a tool."""
        return bool(self.hints) or self.lock is not None

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return (*self.deny, *self.allow, *self.allow_too, *self.exceptions)

    @property
    def causes(self) -> list[Cause]:
        """The hints, as the flags that set them."""
        return [_CAUSES[hint] for hint in self.hints]

    def hits(self, name: str) -> list[Pattern]:
        """Return all patterns that match a name."""
        return [pattern for pattern in self.patterns if pattern.matches(name)]

    def hiding(
        self, name: str, definition: bytes | None = None, *, hits: Collection[Pattern] | None = None
    ) -> Hider | None:
        """Return what hides a tool, or None. ``hits`` are the patterns that match, if known."""

        def first_of(patterns: tuple[Pattern, ...]) -> Pattern | None:
            for pattern in patterns:
                if pattern.matches(name) if hits is None else pattern in hits:
                    return pattern
            return None

        by, hints = first_of(self.deny), self.hints
        if (by or hints) and self.exceptions and first_of(self.exceptions):
            by, hints = None, ()
        if by:
            return by
        if self.allow and not first_of(self.allow):
            return NOT_ALLOWED
        if self.allow_too and not first_of(self.allow_too):
            return NOT_ALLOWED
        locked = self.locked(name, definition)
        if not hints or (locked and locked is not UNDECIDED):
            return locked
        if definition is None:
            return UNDECIDED
        says = self.claims(name, definition)
        return next((_CAUSES[hint] for hint in hints if _HIDES[hint](says)), None)

    def claims(self, name: str, definition: bytes) -> Claims:
        """Return what is known of a tool: what the operator says of it, else what it claims."""
        claims = claims_in(definition)
        return self.vouching.vouched(name, claims) if self.vouching else claims

    def locked(self, name: str, definition: bytes | None) -> Cause | None:
        """Return why the lock hides a tool, or None."""
        if self.lock is None:
            return None
        if definition is None and name in self.lock.tools:
            return UNDECIDED
        lacks = self.lock.judge(name, definition or b"")
        return Cause(BY_LOCK, lacks) if lacks else None

    def hides_in_any_case(self, name: str) -> bool:
        """Tell whether a deny pattern matches a name that is written in other case: a server may
        take it for the denied one."""
        if any(exception.matches(name) for exception in self.exceptions):
            return False
        every = map(in_any_case, self.deny)
        return any(one is None or one.matches(name) for one in every)


EVERYTHING = Choice()
BY_LOCK = "--lock"
IN_LOCK = f" ({BY_LOCK})"
"""Ends the sentences about what a lock does not approve."""


def describe_hider(by: Hider | None) -> str:
    return by.says if by else "the upstream has no such tool"


def is_locked(by: Hider | None) -> bool:
    """Tell whether the lock hides a tool."""
    return isinstance(by, Cause) and by.text == BY_LOCK


def is_hint(by: Hider | None) -> bool:
    """Tell whether a hint hides a tool: then no later definition can expose it."""
    return by in _CAUSES.values()


def _the(holder: Value, key: str) -> Value | None:
    """Return the value of a key; None if some reader may find another value for it."""
    plain = key.lower()
    alike = [
        member
        for member in holder.members or ()
        if member.key == key or (member.key not in _USUAL and _plain(member.key) == plain)
    ]
    return alike[0].value if len(alike) == 1 and alike[0].key == key else None


def _plain(key: str) -> str:
    return fold(key).replace("_", "").replace("-", "")


def claims_in(definition: bytes) -> Claims:
    """Read what a definition claims. Anything that two readers could read differently is unclear.

    >>> claims_in(b'{"annotations":{"readOnlyHint":true,"read_only_hint":false}}').read_only
    >>> claims_in(b'{"annotations":{"destructiveHint":true,"openWorldHint":true}}').marks
    'destructive, open-world'
    """
    if b"nnotations" not in definition and b"\\u" not in definition:
        return _UNCLEAR
    return _read(definition) if len(definition) <= _SHORT else _read.__wrapped__(definition)


_SHORT = 4096  # bytes


@lru_cache(1024)  # where new tools are judged, each list has the same ones
def _read(definition: bytes) -> Claims:
    try:
        text, tool = scan(definition, {"annotations": {}}, Limits(message=len(definition)))
    except ProtocolError:
        return _UNCLEAR
    if (said := _the(tool, "annotations")) is None:
        return _UNCLEAR

    def claim(key: str) -> bool | None:
        value = _the(said, key)
        return _BOOLEANS.get(text[value.start : value.end]) if value else None

    return Claims(
        read_only=claim("readOnlyHint"),
        destructive=claim("destructiveHint"),
        idempotent=claim("idempotentHint"),
        open_world=claim("openWorldHint"),
    )
