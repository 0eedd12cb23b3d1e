"""Which fields of a head go on to the other side, and what was decided on a head before.

Fields about one connection stay on it. Links may not lead past us, and no field may show a hidden
tool. Peers repeat their heads with each message: the engine remembers a few of them, with the notes
that are made here, so that this is decided once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.head import LONGEST_VALUE, MOST_HEADERS, Fields, Head, text_of, values_of
from mcp_tool_filter.http.urls import WITH_URLS, UpstreamNames, keep_links, leads_away

if TYPE_CHECKING:
    from mcp_tool_filter.http.exchange import Passed
    from mcp_tool_filter.http.listener import Listener
    from mcp_tool_filter.policy.config import Config

# They are about one connection: we drop them in both directions.
_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"content-length", b"upgrade", b"http2-settings",
})  # fmt: skip
_NOT_SENT = frozenset({
    *_HOP_BY_HOP, b"host", b"accept-encoding", b"proxy-authorization", b"range", b"if-range",
    b"expect", b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions",
})  # fmt: skip
_NOT_ANSWERED = frozenset({*_HOP_BY_HOP, b"alt-svc", b"sec-websocket-extensions"})
_CONTROL = re.compile(rb"[\r\n\0]")
_SCHEMA = b"inputschema"  # every tool has one


@dataclass(slots=True, eq=False)
class RequestNotes:
    """What was decided on a request's head; all heads that are equal share it."""

    config: Config | None = None
    """The configuration under which this was decided; None if nothing was."""
    problem: str | None = None
    """Why the gate refuses the request, or None."""
    head: Head | None = None
    """The head as the core reads it."""
    out_fields: Fields | None = None
    """The fields that the upstream gets, if it gets the client's own body."""
    out_head: bytes = b""
    """The same, written, with the request line."""


@dataclass(slots=True, eq=False)
class AnswerNotes:
    """What was decided on an answer's head; remembered with it."""

    names: UpstreamNames | None = None
    """The names of the upstream by which the fields were judged; None if they were not yet."""
    fields: Fields = ()
    """The fields that may pass."""
    date_at: int | None = None
    """The place of Date among them."""
    stays: bool = True
    """False for a redirect that leads away from us."""
    reason: bytes = b""
    kind: str = ""
    """The content type."""
    coding: str = ""
    session: str | None = None
    challenges: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()

    def judge(self, status: int, reason: bytes, fields: Fields, listener: Listener) -> None:
        """Judge an answer's head. Raises ProtocolError if it must not pass."""
        values = b"".join([value for _, value in fields])
        if len(fields) > MOST_HEADERS or any(len(value) > LONGEST_VALUE for _, value in fields):
            raise ProtocolError("a header that is too long, or too many of them")
        if _CONTROL.search(values):
            raise ProtocolError("a control character in a header")
        kept = [one for one in fields if one[0].lower() not in _NOT_ANSWERED]
        if _SCHEMA in values.lower():
            kept = [one for one in kept if _SCHEMA not in one[1].lower()]
        self.stays = True
        if not listener.is_forward and links_in(kept):
            kept = keep_links(kept, listener.names)
            self.stays = not (300 <= status < 400 and leads_away(kept))
        places = [at for at, (name, _) in enumerate(kept) if name.lower() == b"date"]
        self.fields, self.date_at = tuple(kept), places[0] if len(places) == 1 else None
        self.reason = b"" if _SCHEMA in reason.lower() else reason
        self.kind = text_of(fields, b"content-type")
        self.coding = text_of(fields, b"content-encoding")
        self.session = text_of(fields, b"mcp-session-id") or None
        self.challenges = tuple(_texts(fields, b"www-authenticate"))
        self.locations = tuple(_texts(fields, b"location"))
        self.names = listener.names


def fields_for_upstream(
    head: Head, passed: Passed, *, host: bytes, added: Fields, is_socket: bool
) -> Fields:
    """Return the fields that the upstream gets: the client's, as far as they may pass, and ours."""
    gone = {*_NOT_SENT, *(name.lower() for name, _ in added)}
    gone.update(name.encode() for name, _ in passed.headers)
    if passed.body is not None:
        gone.add(b"content-encoding")
    out = [(b"host", host)]
    out += [one for one in head.headers if one[0].lower() not in gone]
    out.append((b"accept-encoding", b"identity"))
    out += [(name.encode(), value.encode()) for name, value in passed.headers if value is not None]
    if is_socket:
        key = (head.get(b"sec-websocket-key") or "").encode("latin-1")
        out += [
            (b"connection", b"Upgrade"),
            (b"upgrade", b"websocket"),
            (b"sec-websocket-version", b"13"),
            (b"sec-websocket-key", key),
        ]
    return (*out, *added)


def links_in(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Return the fields that hold URLs."""
    return tuple([one for one in fields if one[0].lower() in WITH_URLS])


def _texts(fields: Fields, name: bytes) -> list[str]:
    return [value.decode("latin-1") for value in values_of(fields, name)]
