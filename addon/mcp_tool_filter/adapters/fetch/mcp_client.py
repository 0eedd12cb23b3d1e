"""Speak MCP to the upstream, as far as fetching its tools needs it: one request, one answer.

``StatelessClient`` is for 2026-07-28, ``StreamableClient`` for 2025-03-26 to 2025-11-25; both send
with a ``Poster``. Each returns a ``ResultReply`` with the original bytes, and closes what it has
opened. So does ``LegacyClient`` in its own module.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from mcp_tool_filter.adapters.fetch.background import Background
from mcp_tool_filter.adapters.fetch.mcp_replies import (
    INITIALIZE,
    INITIALIZED,
    Refused,
    Result,
    ResultReply,
    stateless_meta,
)
from mcp_tool_filter.adapters.fetch.poster import Poster
from mcp_tool_filter.adapters.sockets.client import Headers
from mcp_tool_filter.protocol.limits import R2026_07_28, Transport


class McpClient(Protocol):
    """The interface of the three clients."""

    transport: Transport

    @property
    def path(self) -> str: ...

    @property
    def revision(self) -> str: ...

    @property
    def has_session(self) -> bool: ...

    async def request(self, method: str, params: Result) -> ResultReply: ...

    async def close(self) -> None: ...


class StatelessClient:
    """2026-07-28: every request states who we are and which revision we speak."""

    transport = Transport.STATELESS
    revision = R2026_07_28
    has_session = False

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    @property
    def path(self) -> str:
        return self._poster.path

    async def request(self, method: str, params: Result) -> ResultReply:
        meta = stateless_meta(self.revision)
        headers = [
            (b"mcp-protocol-version", self.revision.encode()),
            (b"mcp-method", method.encode()),
        ]
        return await self._poster.ask(method, {**params, "_meta": meta}, headers)

    async def close(self) -> None:
        await self._poster.close_sessions()


class StreamableClient:
    """2025-03-26 to 2025-11-25: ``initialize`` first, then each POST gets its own answer."""

    transport = Transport.STREAMABLE

    def __init__(self, poster: Poster) -> None:
        self._poster = poster
        self._session: bytes | None = None
        self._background = Background()
        self.revision = ""

    @property
    def path(self) -> str:
        return self._poster.path

    @property
    def has_session(self) -> bool:
        return self._session is not None

    async def initialize(self) -> ResultReply:
        self._poster.session = None  # a refused probe may have got one too
        reply = await self._poster.ask("initialize", INITIALIZE, hears=self._answer)
        self._session = self._poster.session
        return reply

    async def initialized(self, revision: str) -> None:
        """Confirm the revision; ignore it if the upstream refuses the notification."""
        self.revision = revision
        with suppress(Refused):
            await self._poster.tell(INITIALIZED, self._headers())

    async def request(self, method: str, params: Result) -> ResultReply:
        return await self._poster.ask(method, params, self._headers(), self._answer)

    async def close(self) -> None:
        await self._background.close()
        await self._poster.close_sessions(self._version_header())

    async def _answer(self, message: bytes) -> None:
        self._background.answer(self._poster.tell(message, self._headers()))

    def _headers(self) -> Headers:
        session = [(b"mcp-session-id", self._session)] if self._session else []
        return [*session, *self._version_header()]

    def _version_header(self) -> Headers:
        return [(b"mcp-protocol-version", self.revision.encode())] if self.revision else []
