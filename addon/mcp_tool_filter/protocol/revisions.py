"""MCP revisions and transports, and how they differ for us.

Revisions are named by date, so later ones compare greater. We assume nothing about a revision that
is not in ``KNOWN_REVISIONS``. Sources: the specification's `basic/transports` and `basic/lifecycle`
pages of each revision, and `basic/versioning` of 2026-07-28.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

R2024_11_05: Final = "2024-11-05"
R2025_03_26: Final = "2025-03-26"
R2025_06_18: Final = "2025-06-18"
R2025_11_25: Final = "2025-11-25"
R2026_07_28: Final = "2026-07-28"

INITIALIZE_REVISIONS: Final = (R2024_11_05, R2025_03_26, R2025_06_18, R2025_11_25)
"""Negotiated by an ``initialize`` at the beginning; oldest first."""

STATELESS_REVISIONS: Final = (R2026_07_28,)
"""Stated in every request; oldest first."""

KNOWN_REVISIONS: Final = (*INITIALIZE_REVISIONS, *STATELESS_REVISIONS)


class Transport(StrEnum):
    """How messages travel; the value is the name that people use."""

    LEGACY_SSE = "HTTP+SSE"
    """One GET stream carries all messages of the upstream; POSTs are answered 202."""
    STREAMABLE = "Streamable HTTP"
    """Each POST gets its own answer; ``initialize`` comes first, and there may be a session id."""
    STATELESS = "Streamable HTTP, stateless"
    """Each POST gets its own answer and is independent of the others."""
    STDIO = "stdio"
    """No HTTP: lines to and from a command."""


def has_initialize(revision: str) -> bool:
    """Tell whether a client must send ``initialize`` first."""
    return revision in INITIALIZE_REVISIONS
