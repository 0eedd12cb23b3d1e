"""What becomes of a message, and why.

A verdict is one of four. Whoever carries it out matches all four, so that mypy finds the caller
who forgot one. A reason is for those who watch; a client is never told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    DENIED = "denied"
    """A call of a tool that the user denies."""
    UNKNOWN = "unknown"
    """A call of a tool that the upstream does not have."""
    CACHED = "cached"
    """A list answered from the snapshot."""
    HIDDEN = "hidden"
    """A list without the denied tools, or with the definitions of the snapshot."""
    MALFORMED = "malformed"
    """A message that two readers could take differently."""
    MISMATCH = "mismatch"
    """Headers that say something else than the body."""
    OVERSIZED = "oversized"
    INVALID = "invalid"
    """The upstream sent what cannot be judged."""
    LOST = "lost"
    """The upstream is gone."""
    BLOCKED = "blocked"
    """A rule refused it."""
    CHANGED = "changed"
    """Rules changed it."""
    STORED = "stored"
    """An answer that a rule keeps for some time."""
    FORBIDDEN = "forbidden"
    """A host or origin that is not ours."""


@dataclass(frozen=True, slots=True)
class Reason:
    why: Why
    tools: tuple[str, ...] = ()
    detail: str = ""
    drift: tuple[str, ...] = ()
    """Sentences about what the upstream says otherwise than in the snapshot."""
    rule: str = ""
    """Which rule decided."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Pass on the original bytes."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Pass on this instead."""

    text: bytes
    reason: Reason
    owed: tuple[bytes, ...] = ()
    """Replies of ours that belong into the answer (to a batch that lost members)."""
    to_upstream: tuple[bytes, ...] = ()
    """Replies of ours to what the upstream asked in a batch, where it hears us at once."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer in the upstream's place."""

    text: bytes
    reason: Reason


@dataclass(frozen=True, slots=True)
class Drop:
    """Pass on nothing, and let nobody wait for it."""

    reason: Reason


type Verdict = Forward | Rewrite | Reply | Drop
VERDICTS = (Forward, Rewrite, Reply, Drop)
"""For ``isinstance``: a decision that is none of these must wait."""
