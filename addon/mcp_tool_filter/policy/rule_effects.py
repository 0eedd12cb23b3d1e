"""What rules need of the host, as values.

If one of them fails, the host throws ``EffectFailed`` into the decision that yielded it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class EffectFailed(Exception):
    """An effect could not be carried out, or not in time. ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class Identify:
    """Ask for the short salted hash of credentials: every process that shares a state agrees."""

    credentials: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CountUse:
    """Count one use of a key in sliding windows, unless that is over one of the limits.

    Sent back is None, or how many seconds must pass before another use is within the limits.
    """

    key: str
    limits: tuple[tuple[int, float], ...]
    """How many uses, in how many seconds."""
    within: float
    """Seconds that this may take."""


@dataclass(frozen=True, slots=True)
class ReadCache:
    """Sent back are the bytes stored under a key, or None."""

    key: str
    within: float


@dataclass(frozen=True, slots=True)
class WriteCache:
    """Store bytes under a key; nobody waits for it."""

    key: str
    value: bytes = field(repr=False)
    ttl: float
    group: str
    """Of each group at most so many entries are kept."""
    max_entries: int


@dataclass(frozen=True, slots=True)
class ScriptResult:
    status: int
    output: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunScript:
    """Run a program without a shell. Sent back is a ScriptResult, or None if nobody waits."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    input: bytes = field(repr=False)
    timeout: float
    decides: bool
    rule: str


@dataclass(frozen=True, slots=True)
class CallPython:
    """Call a user's function, which may be async. Sent back is what it returns."""

    function: Callable[..., object]
    argument: object = field(repr=False)
    within: float


@dataclass(frozen=True, slots=True)
class SendWebhook:
    """POST a JSON object from a queue; nobody waits for it."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    members: str = field(repr=False)
    """The object's members as JSON; the host puts the time before them."""
    timeout: float
    rule: str


@dataclass(frozen=True, slots=True)
class SendCopy:
    """Send a copy of a request to the upstream, or to a URL; its answer is dropped.

    The host puts an id of its own between the two parts of the message.
    """

    head: str = field(repr=False)
    tail: str = field(repr=False)
    origin: object = field(repr=False, compare=False)
    """What the host gave with the request."""
    to: str | None
    rule: str


@dataclass(frozen=True, slots=True)
class WriteLog:
    level: str
    message: str
    rule: str
    session: str = field(default="", compare=False)
    """The id of the session in which it happened."""
    method: str | None = field(default=None, compare=False)
    tool: str | None = field(default=None, compare=False)
    id: str | None = field(default=None, compare=False)
    """Of the message, as it was written."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Warn the user, once for each text."""

    text: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Increase the counter of this name."""

    name: str
    value: float


type RuleEffect = (
    Identify
    | CountUse
    | ReadCache
    | WriteCache
    | RunScript
    | CallPython
    | SendWebhook
    | SendCopy
    | WriteLog
    | Warn
    | Measure
)
