"""Find out at which path and over which transport an upstream speaks MCP.

We try the newest transport first, as the specification requires (2026-07-28, basic/versioning and
basic/transports/streamable-http, "Backward Compatibility"): ``server/discover``; then
``initialize``; then a GET for the stream of HTTP+SSE. Without a configured endpoint we try
``_USUAL_PATHS`` in order. Most upstreams need one connection and two (stateless) or five requests,
the last one a DELETE of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import (
    KNOWN_REVISIONS,
    REVISION_KEY,
    Transport,
    has_initialize,
    stateless_for_both,
)
from mcp_tool_filter.core.sockets.connect import ConnectionLost
from mcp_tool_filter.core.upstream.clients import LegacyClient, McpClient, Poster, StreamableClient
from mcp_tool_filter.core.upstream.replies import (
    HEADER_MISMATCH,
    UNSUPPORTED_REVISION,
    Refused,
    ResultReply,
    UpstreamIntroduction,
    introduction_of,
    plain,
    revisions_in,
    supported_by,
)
from mcp_tool_filter.core.upstream.target import Target, login_to, open_client

_PROBE_TIMEOUT = 5.0  # seconds; some upstreams never answer a method that they do not know
_NO_SUCH_PATH = (404, 405, 501)
_USUAL_PATHS: Final = (
    "/mcp",
    "/",
    "/sse",
    "/mcp/",
    "/v1/mcp",
    "/api/mcp",
    "/mcp/sse",
    "/v1/sse",
    "/api/sse",
)
_NOWHERE = f"no MCP found at {' '.join(_USUAL_PATHS)}: set its path with the endpoint option"


@dataclass(frozen=True, slots=True)
class Found:
    """An upstream that was found, and its introduction."""

    client: McpClient
    introduction: UpstreamIntroduction


type _Problem = Refused | ProtocolError
type _Way = Callable[[str], Awaitable[Found]]
type FindTransport = Callable[[AsyncExitStack], Awaitable[Found]]
"""Finds an upstream's transport; the stack closes what it opens."""


class _NotHere(Exception):
    """This path is not MCP; ``problem`` is what came instead."""

    def __init__(self, problem: _Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class Search:
    """Searches for the path and the transport of the upstream."""

    def __init__(self, target: Target, opened: AsyncExitStack) -> None:
        self._endpoint = target.endpoint
        self._limit = target.limit
        self._patience = target.connect_timeout / 2  # while another transport is left to try
        self._opened = opened
        self._http = open_client(target, login_to(target))
        opened.push_async_callback(self._http.close)

    async def find(self) -> Found:
        """Return the upstream.

        Raises Refused, ProtocolError or HttpFailed with its most telling answer.
        """
        # Finally without a probe: some upstreams answer 404 to anything but an initialize.
        tries: list[tuple[_Way, str]]
        if self._endpoint:
            path = "/" + self._endpoint.removeprefix("/")
            tries = [(way, path) for way in (*self._ways(path), self._by_initialize)]
        else:
            tries = [(self._guess, path) for path in _USUAL_PATHS]
            tries += [(self._by_initialize, path) for path in _USUAL_PATHS[:2]]
        problems = []
        for way, path in tries:
            try:
                return await way(path)
            except _NotHere as nothing:
                problems.append(nothing.problem)
        problem = _most_telling(problems)
        raise problem if self._endpoint else ProtocolError(f"{problem}; {_NOWHERE}")

    async def _guess(self, path: str) -> Found:
        """Try a path that may not exist, with as few requests as possible."""
        first, second = self._ways(path)
        try:
            return await first(path)
        except _NotHere as nothing:
            if not isinstance(nothing.problem, Refused) or nothing.problem.status == 404:
                raise
        return await second(path)

    def _ways(self, path: str) -> tuple[_Way, _Way]:
        """Return the two ways to begin at a path, the more likely one first."""
        if "/sse" in path:
            return self._by_stream, self._by_post
        return self._by_post, self._by_stream

    async def _by_post(self, path: str) -> Found:
        poster = self._poster(path)
        if found := await self._discover(poster, min(_PROBE_TIMEOUT, self._patience)):
            return found
        try:
            return await self._initialize(poster)
        except Refused as refused:
            # A stateless upstream that was too slow for the probe reveals itself now.
            if refused.code in (UNSUPPORTED_REVISION, HEADER_MISMATCH):
                with suppress(_NotHere):
                    if found := await self._discover(poster, None):
                        return found
            raise

    async def _by_initialize(self, path: str) -> Found:
        return await self._initialize(self._poster(path))

    async def _discover(self, poster: Poster, seconds: float | None) -> Found | None:
        client = StreamableClient(poster, Transport.STATELESS)
        try:
            async with asyncio.timeout(seconds):
                reply = await client.request("server/discover", {})
        except (TimeoutError, ProtocolError, ConnectionLost):
            return None
        except Refused as refused:
            _judge_probe(refused)
            return None
        revision = stateless_for_both(revisions_in(reply.result.get("supportedVersions")))
        if revision is None:
            return None
        return Found(client, introduction_of(reply, revision=revision))

    async def _initialize(self, poster: Poster) -> Found:
        client = StreamableClient(poster)
        try:
            reply = await client.initialize()
        except ProtocolError as error:
            raise _NotHere(error) from None
        except Refused as refused:
            if _is_final(refused):
                raise
            raise _NotHere(refused) from None
        introduction = introduction_in(reply)
        await client.initialized(introduction.revision)
        return Found(client, introduction)

    async def _by_stream(self, path: str) -> Found:
        client = LegacyClient(self._http, path, limit=self._limit)
        self._opened.push_async_callback(client.close)
        try:
            async with asyncio.timeout(self._patience):
                await client.open()
        except Refused as refused:
            await client.close()
            if refused.status in (401, 403):
                raise
            raise _NotHere(refused) from None
        except (TimeoutError, ProtocolError, ConnectionLost) as error:
            await client.close()
            problem = str(error) or "The event stream names no endpoint"
            raise _NotHere(ProtocolError(problem)) from None
        introduction = introduction_in(await client.initialize())
        await client.initialized(introduction.revision)
        return Found(client, introduction)

    def _poster(self, path: str) -> Poster:
        poster = Poster(self._http, path, limit=self._limit)
        self._opened.push_async_callback(poster.close)
        return poster


def _judge_probe(refused: Refused) -> None:
    """Raise unless an older upstream would refuse ``server/discover`` like this."""
    if refused.status in (401, 403):
        raise refused
    if refused.status in _NO_SUCH_PATH and refused.error is None:
        raise _NotHere(refused)
    supported = supported_by(refused.error)
    if supported and not set(supported) & set(KNOWN_REVISIONS):
        named = plain(", ".join(supported))
        raise ProtocolError(f"The upstream speaks only MCP revisions that we do not know: {named}")


def _is_final(refused: Refused) -> bool:
    """Tell whether searching elsewhere is pointless."""
    if refused.status in _NO_SUCH_PATH:
        return False
    return refused.status in (401, 403, 429) or refused.status >= 500 or refused.error is not None


def introduction_in(reply: ResultReply) -> UpstreamIntroduction:
    """Parse the answer to ``initialize``. Raises ProtocolError if the revision is unknown."""
    revision = reply.result.get(REVISION_KEY)
    if not isinstance(revision, str) or not has_initialize(revision):
        said = plain(str(revision))
        raise ProtocolError(f"The upstream wants MCP revision {said}, which we do not know")
    return introduction_of(reply, revision=revision)


def _most_telling(problems: list[_Problem]) -> _Problem:
    def says_more(problem: _Problem) -> bool:
        return not isinstance(problem, Refused) or problem.status not in _NO_SUCH_PATH

    return next(filter(says_more, problems), problems[0])
