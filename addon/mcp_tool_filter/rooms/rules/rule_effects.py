"""The effects of rules: what they need from the host, as values.

If one of them fails, the host throws ``EffectFailed`` into the decision that yielded it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mcp_tool_filter.core.policy.effects import RoomEffect
from mcp_tool_filter.core.policy.effects import WriteLog as WriteLog  # one of them


class EffectFailed(Exception):
    """An effect failed or took too long. ``str()`` says why."""


class TooLarge(EffectFailed):
    """The message is too large for an effect. Its sender caused that."""


class Outward(RoomEffect):
    """An effect that others notice, and for which no decision waits. A rehearsal leaves it out, and
    so does a rule that is only evaluated."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Identify(RoomEffect):
    """Ask for the short salted hash of credentials, which is the same in all processes that share a
    state."""

    credentials: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CountUse(RoomEffect):
    """Count one use of a key in sliding windows, unless it would exceed one of the limits.

    The host sends back None, or the seconds until another use is within the limits.
    """

    key: str
    limits: tuple[tuple[int, float], ...]
    """Pairs: how many uses in how many seconds."""
    within: float
    """Seconds that this may take."""


@dataclass(frozen=True, slots=True)
class Locally(RoomEffect):
    """Keep this for rules that are only evaluated: in this process, at once, and apart."""

    effect: Identify | CountUse


@dataclass(frozen=True, slots=True)
class ReadCache(RoomEffect):
    """Ask for the bytes stored under a key; the host sends back them or None."""

    key: str
    within: float


@dataclass(frozen=True, slots=True)
class WriteCache(RoomEffect):
    """Store bytes under a key; the decision does not wait for it."""

    key: str
    value: bytes = field(repr=False)
    ttl: float
    group: str
    """Each group keeps at most ``max_entries`` entries."""
    max_entries: int


@dataclass(frozen=True, slots=True)
class ScriptResult:
    status: int
    output: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunScript(RoomEffect):
    """Run a program without a shell.

    The host sends back a ScriptResult, or None in the background.
    """

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    input: bytes = field(repr=False)
    timeout: float
    decides: bool
    rule: str


@dataclass(frozen=True, slots=True)
class CallPython(RoomEffect):
    """Call a user's function, which may be async. The host sends back what it returns."""

    function: Callable[..., object]
    argument: object = field(repr=False)
    within: float


@dataclass(frozen=True, slots=True)
class SendWebhook(Outward):
    """Queue a POST of a JSON object; the decision does not wait for it."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    members: str = field(repr=False)
    """The object's members as JSON; the host inserts the time before them."""
    timeout: float
    rule: str


@dataclass(frozen=True, slots=True)
class SendCopy(Outward):
    """Send a copy of a request to the upstream or to a URL, and drop the answer.

    The host inserts its own id between the two parts of the message.
    """

    head: str = field(repr=False)
    tail: str = field(repr=False)
    origin: object = field(repr=False, compare=False)
    """The host's own object for the request."""
    to: str | None
    rule: str


@dataclass(frozen=True, slots=True)
class Warn(RoomEffect):
    """Warn the user, once for each text."""

    text: str


@dataclass(frozen=True, slots=True)
class Measure(RoomEffect):
    """Increase the counter of this name."""

    name: str
    value: float
