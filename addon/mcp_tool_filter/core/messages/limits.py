"""What the house takes as given: limits on what a peer can make us hold, MCP's revisions, what a
token of HTTP is, and frozen values.

Revisions are named by date, so later ones compare greater. We assume nothing about a revision that
is not in ``KNOWN_REVISIONS``. Sources: the specification's `basic/transports` and `basic/lifecycle`
pages of each revision, and `basic/versioning` of 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, dataclass_transform

from mcp_tool_filter.core.errors import ProtocolError

MEBIBYTE = 1024 * 1024


MOST_IN_BATCH = 1000
"""Messages in a batch: we read and decide one after the other, while all other clients wait."""
MOST_PARTS = 20_000
"""Members and elements that we look into, in one message.

Parts that we only check may have any number.
"""
MOST_LISTED = 250_000
"""The same limit for the tool lists in a message."""
MOST_SEARCHED = 200_000
"""Objects and members of JSON that is searched at every depth."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen[Kind](kind: type[Kind]) -> type[Kind]:
    """Make a frozen dataclass of which each message needs new ones.

    Only mypy freezes it: in a class that Python freezes, each field costs as much as a function
    call.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)


class OverLimit(ProtocolError):
    """A peer sent something that may be honest, but is more than we hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    message: int = 10 * MEBIBYTE
    """Bytes of one message: a request body, a JSON answer, an event, a line."""
    pending: int = 20 * MEBIBYTE
    """Bytes of an unfinished event or line."""
    unfinished: int = 128 * MEBIBYTE
    """Bytes of all messages that are being received or sent, for all clients together."""
    depth: int = 128
    """Levels of JSON nesting."""
    sessions: int = 10_000
    """Remembered sessions; we forget the least recently used first."""
    exchanges: int = 1_000
    """Requests in flight that we remember for one session."""
    exchange_bytes: int = 256 * 1024
    """Bytes of the ids of these requests."""
    idle: float = 24 * 3600.0
    """Seconds after which a silent session is forgotten."""


R2024_11_05: Final = "2024-11-05"
R2025_03_26: Final = "2025-03-26"
R2025_06_18: Final = "2025-06-18"
R2025_11_25: Final = "2025-11-25"
R2026_07_28: Final = "2026-07-28"


@dataclass(frozen=True, slots=True)
class Revision:
    """What differs between revisions, apart from what messages say themselves."""

    name: str
    is_stateless: bool = False
    """Each request states its revision and its sender; before, ``initialize`` did that once."""
    is_streamable: bool = True
    """Each POST gets its own answer."""
    has_batches: bool = False
    has_header: bool = True
    """A client names the revision in the header Mcp-Protocol-Version."""
    resource_not_found: int = -32602
    """The code of the error for a resource that does not exist."""


_OLDER_CODE = -32002
REVISIONS: Final = (
    Revision(R2024_11_05, is_streamable=False, has_header=False, resource_not_found=_OLDER_CODE),
    Revision(R2025_03_26, has_batches=True, has_header=False, resource_not_found=_OLDER_CODE),
    Revision(R2025_06_18, resource_not_found=_OLDER_CODE),
    Revision(R2025_11_25, resource_not_found=_OLDER_CODE),
    Revision(R2026_07_28, is_stateless=True),
)
"""The revisions that we know, oldest first. Code elsewhere names none of them."""

KNOWN_REVISIONS: Final = tuple(one.name for one in REVISIONS)
INITIALIZE_REVISIONS: Final = tuple(one.name for one in REVISIONS if not one.is_stateless)
"""Negotiated by an ``initialize`` at the beginning; oldest first."""
SESSION_REVISIONS: Final = tuple(
    one.name for one in REVISIONS if one.is_streamable and not one.is_stateless
)
"""Those with sessions over Streamable HTTP; oldest first."""
STATELESS_REVISIONS: Final = tuple(one.name for one in REVISIONS if one.is_stateless)
"""Stated in every request; oldest first."""
OLDEST: Final = KNOWN_REVISIONS[0]
NEWEST_WITH_INITIALIZE: Final = INITIALIZE_REVISIONS[-1]
NEWEST_STATELESS: Final = STATELESS_REVISIONS[-1]

REVISION_KEY: Final = "protocolVersion"
"""The member in which ``initialize`` and its answer name the revision."""
META_REVISION: Final = f"io.modelcontextprotocol/{REVISION_KEY}"
"""The member of ``_meta`` in which a stateless request names it."""

HTTP_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]"
"""A character of a header's name, a method, and so on (RFC 9110, section 5.6.2)."""


def revision_of(name: str | None) -> Revision:
    """Return the newest known revision that is not newer than the one of this name.

    >>> revision_of("2025-12-31").name, revision_of(None).name
    ('2025-11-25', '2024-11-05')
    """
    older = [revision for revision in REVISIONS if revision.name <= (name or "")]
    return older[-1] if older else REVISIONS[0]


def stateless_for_both(theirs: Iterable[str]) -> str | None:
    """Return the newest stateless revision that an upstream speaks, too, or None."""
    both = set(STATELESS_REVISIONS) & set(theirs)
    return max(both, default=None)


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
