"""What became of every call: each is answered, told that it is lost, given up by us, or wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_MOST_EVIDENCE = 20
_COUNTS = (
    "answered", "given_up", "told", "lost", "wrong", "notifications", "connections", "sessions",
)  # fmt: skip


@dataclass(slots=True)
class Ledger:
    path: str = "/mcp"
    """Where the clients that keep it post."""
    made: Counter[str] = field(default_factory=Counter)
    """By what was asked."""
    answered: int = 0
    """With its own id and its own token, or the error that it had to get."""
    given_up: int = 0
    """The client left before the answer, as it was meant to."""
    told: int = 0
    """Answered with the error for a connection that the upstream has cut."""
    lost: int = 0
    """Never answered, though the client was there."""
    wrong: int = 0
    notifications: int = 0
    connections: int = 0
    sessions: int = 0
    evidence: list[str] = field(default_factory=list)

    def note_lost(self, why: str) -> None:
        self.lost += 1
        self._keep(f"lost: {why}")

    def note_wrong(self, why: str) -> None:
        self.wrong += 1
        self._keep(f"wrong: {why}")

    def _keep(self, why: str) -> None:
        if len(self.evidence) < _MOST_EVIDENCE:
            self.evidence.append(why[:500])

    @property
    def unaccounted(self) -> int:
        ended = self.answered + self.given_up + self.told + self.lost + self.wrong
        return self.made.total() - ended

    def add(self, other: Ledger) -> None:
        """Take over the counts of another one."""
        self.made += other.made
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.evidence += other.evidence

    def row(self) -> dict[str, int]:
        """Return all counts by name."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {"made": self.made.total(), **counts, "unaccounted": self.unaccounted}
