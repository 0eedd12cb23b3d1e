"""Finds out how the upstream speaks, and fetches its tool list, all pages.

The newest way is tried first, as the specification wants it (2026-07-28, basic/versioning and
basic/transports/streamable-http, "Backward Compatibility"): ``server/discover``; then
``initialize``; then a GET for the stream of HTTP+SSE. Where no endpoint is given the usual paths
are tried, in the order of ``_USUAL_PATHS``. Most upstreams need one connection and two
(stateless) or five requests, the last of them a DELETE of the session.

An upstream without a ``tools`` capability is still asked: some forget to declare it. Only when it
then knows no tools/list (-32601) has it no tools, and no pages.

It is one module because the order of these attempts, and what ends them, must be read together.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final

from mcp_tool_filter.adapters.fetch.http_client import HttpClient, Login
from mcp_tool_filter.adapters.fetch.http_failures import ConnectionLost, HttpFailed, LoginNeeded
from mcp_tool_filter.adapters.fetch.legacy_client import LegacyClient
from mcp_tool_filter.adapters.fetch.mcp_client import McpClient, StatelessClient, StreamableClient
from mcp_tool_filter.adapters.fetch.mcp_replies import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    UNSUPPORTED_REVISION,
    Introduction,
    Refused,
    Reply,
    introduction_of,
    next_cursor,
    plain,
    revisions_in,
    supported_by,
)
from mcp_tool_filter.adapters.fetch.poster import Poster
from mcp_tool_filter.adapters.fetch.tls import make_tls_context as make_tls_context
from mcp_tool_filter.adapters.oauth.folder import has_logins
from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.errors import ConnectFailed, FetchFailed, ListsAfterLogin, ProtocolError
from mcp_tool_filter.http.origin import parse_origin
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.protocol.revisions import (
    KNOWN_REVISIONS,
    R2026_07_28,
    has_initialize,
)

MAX_PAGES: Final = 1000
MAX_TOTAL: Final = 8
"""All pages together may be this many times as long as one message."""

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
_NOWHERE = f"no MCP found at {' '.join(_USUAL_PATHS)}: the endpoint option says where it is"
_NO_SUCH_PAGE = re.compile(r"HTTP 40[45]\b")
_HINTS = {  # what a reason contains, to what to do about it
    "certificate verify failed": "--ca FILE trusts its certificate (in mitmproxy: --set"
    " ssl_verify_upstream_trusted_ca=FILE)",
    "TLS error": "If the upstream speaks plain http on this port, write http://",
}
_METADATA = "/.well-known/oauth-protected-resource"
_NO_CREDENTIALS = "the upstream wants credentials: give them with upstream_headers"
_WRONG_CREDENTIALS = "the upstream does not accept the credentials in upstream_headers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to fetch from."""

    url: str
    """Scheme, host and port."""
    endpoint: str | None
    """Path and query, where the user said it."""
    headers: tuple[tuple[str, str], ...]
    """Sent with every request."""
    connect_timeout: float
    """Seconds until the upstream has introduced itself."""
    list_timeout: float
    """Seconds for all pages of the tool list."""
    tls: ssl.SSLContext | None
    limit: int
    """Bytes of one message."""
    uses_login: bool = False
    """A stored login for the upstream is used, if there is one."""


def target_for(config: Config, url: str, tls: ssl.SSLContext | None) -> Target:
    """Return what to fetch from; every host asks alike, or the upstream would be asked twice."""
    return Target(
        url=url,
        endpoint=config.endpoint,
        headers=config.upstream_headers,
        connect_timeout=config.connection_timeout,
        list_timeout=config.tool_list_timeout,
        tls=tls,
        limit=config.limits.message,
        uses_login=config.uses_login,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """An upstream that has introduced itself."""

    client: McpClient
    introduction: Introduction


type _Problem = Refused | ProtocolError
type _Way = Callable[[str], Awaitable[Found]]
type Finder = Callable[[AsyncExitStack], Awaitable[Found]]
"""Finds out how an upstream speaks; what it opens is closed with the stack."""


class _NotHere(Exception):
    """Nothing at this path speaks MCP; ``problem`` is what came instead."""

    def __init__(self, problem: _Problem) -> None:
        super().__init__(problem)
        self.problem = problem


async def fetch(target: Target) -> Fetched:
    """Ask the upstream for its tools. Raises ConnectFailed, FetchFailed, LoggedOut."""
    try:
        return await fetch_from(target, lambda opened: _Search(target, opened).find())
    except FetchFailed as error:
        if target.endpoint and _NO_SUCH_PAGE.search(error.why):
            error.hint = await _find_elsewhere(target)
        raise


async def _find_elsewhere(target: Target) -> str | None:
    """Say where MCP is, if it is at a usual path and not where the user said."""
    try:
        async with AsyncExitStack() as opened, asyncio.timeout(target.connect_timeout):
            found = await _Search(replace(target, endpoint=None), opened).find()
    except (TimeoutError, HttpFailed, Refused, ProtocolError, LoginNeeded):
        return None
    return f"MCP is at {target.url}{found.client.path}"


def login_to(target: Target) -> Login | None:
    """Return the stored login that an upstream is asked with, if there is one.

    The user's own Authorization comes first. Raises StartError if logins cannot be read.
    """
    said = {name.lower() for name, _ in target.headers}
    if not target.uses_login or "authorization" in said or not has_logins():
        return None
    from mcp_tool_filter.adapters.oauth.credentials import credentials_for  # few have a login

    return credentials_for(target.url + (target.endpoint or ""))


async def fetch_from(target: Target, find: Finder) -> Fetched:
    """Ask the upstream that ``find`` finds. Raises ConnectFailed, FetchFailed."""
    async with AsyncExitStack() as opened:
        found = await _connect(target, find, opened)
        pages = await _all_pages(target, found)
    return Fetched(
        transport=found.client.transport,
        revision=found.client.revision,
        endpoint=found.client.path,
        server_name=found.introduction.server_name,
        server_version=found.introduction.server_version,
        sessions=found.client.has_session,
        pages=pages,
    )


async def _connect(target: Target, find: Finder, opened: AsyncExitStack) -> Found:
    try:
        async with asyncio.timeout(target.connect_timeout):
            return await find(opened)
    except TimeoutError:
        why = f"Connection timeout after {_milliseconds(target.connect_timeout)}ms"
        raise ConnectFailed(target.url, why=why) from None
    except LoginNeeded as needed:
        raise needed.error from None
    except HttpFailed as error:
        why = plain(str(error))
        raise ConnectFailed(target.url, why=why, hint=_hint_for(why)) from None
    except (Refused, ProtocolError) as error:
        raise await _failed(error, target) from None


async def _failed(error: Exception, target: Target) -> FetchFailed:
    """Tell an upstream that only wants a login from one that failed."""
    why = _why(error, target)
    if isinstance(error, Refused) and await _wants_login(error, target):
        return ListsAfterLogin(why=why, path=error.path or target.endpoint or "/mcp")
    return FetchFailed(why=why)


async def _wants_login(refused: Refused, target: Target) -> bool:
    if refused.status not in (401, 403) or _has_authorization(target):
        return False
    return refused.says_how_to_log_in or await _has_login_metadata(target, refused.path)


async def _has_login_metadata(target: Target, path: str) -> bool:
    """Tell whether the upstream says in a document of its own how users log in."""
    http = HttpClient(parse_origin(target.url), headers=[], tls=target.tls)
    try:
        async with asyncio.timeout(target.list_timeout):
            for place in dict.fromkeys((f"{_METADATA}{path}", _METADATA)):
                async with http.exchange(b"GET", place, []) as response:
                    if response.status == 200 and response.media_type == "application/json":
                        return True
    except (TimeoutError, HttpFailed, OSError):
        return False
    finally:
        await http.close()
    return False


async def _all_pages(target: Target, found: Found) -> tuple[bytes, ...]:
    try:
        async with asyncio.timeout(target.list_timeout):
            return tuple(await _pages(found, at_most=MAX_TOTAL * target.limit))
    except TimeoutError:
        why = f"Request timeout after {_milliseconds(target.list_timeout)}ms"
        raise FetchFailed(why=why) from None
    except LoginNeeded as needed:
        raise needed.error from None
    except (Refused, ProtocolError, HttpFailed) as error:
        raise await _failed(error, target) from None


async def _pages(found: Found, *, at_most: int) -> list[bytes]:
    pages: list[bytes] = []
    cursors: list[str | None] = [None]
    while (reply := await _page(found, cursors[-1])) is not None:
        pages.append(reply.raw)
        if sum(map(len, pages)) > at_most:
            raise ProtocolError(f"The tool list is longer than {at_most} bytes")
        cursor = next_cursor(reply)
        if cursor is None:
            break
        if cursor in cursors:
            raise ProtocolError(f'The tool list goes in a circle: again cursor "{plain(cursor)}"')
        if len(pages) == MAX_PAGES:
            raise ProtocolError(f"The tool list has more than {MAX_PAGES} pages")
        cursors.append(cursor)
    return pages


async def _page(found: Found, cursor: str | None) -> Reply | None:
    """A page of the tool list; None if there is no such thing as a tool list."""
    try:
        return await found.client.request("tools/list", {"cursor": cursor} if cursor else {})
    except Refused as refused:
        if refused.code == METHOD_NOT_FOUND and not found.introduction.has_tools:
            return None
        raise


class _Search:
    """Looks for the path and the way in which the upstream speaks MCP."""

    def __init__(self, target: Target, opened: AsyncExitStack) -> None:
        self._endpoint = target.endpoint
        self._limit = target.limit
        self._patience = target.connect_timeout / 2  # with one way, while another is left
        self._opened = opened
        self._origin = parse_origin(target.url)
        headers = [(name.encode(), value.encode()) for name, value in target.headers]
        self._http = HttpClient(
            self._origin, headers=headers, tls=target.tls, login=login_to(target)
        )
        opened.push_async_callback(self._http.close)

    async def find(self) -> Found:
        """Raises Refused, ProtocolError, HttpFailed: what the upstream said instead."""
        if self._endpoint:
            return await self._find_at("/" + self._endpoint.removeprefix("/"))
        # At last without a probe: some answer 404 to whatever is not an initialize.
        tries: list[tuple[_Way, str]] = [(self._guess, path) for path in _USUAL_PATHS]
        tries += [(self._by_initialize, path) for path in _USUAL_PATHS[:2]]
        problems = []
        for way, path in tries:
            try:
                return await way(path)
            except _NotHere as nothing:
                problems.append(nothing.problem)
        raise ProtocolError(f"{_most_telling(problems)}; {_NOWHERE}")

    async def _find_at(self, path: str) -> Found:
        """Try all ways at the path that the user gave."""
        problems = []
        for way in (*self._ways(path), self._by_initialize):
            try:
                return await way(path)
            except _NotHere as nothing:
                problems.append(nothing.problem)
        raise _most_telling(problems)

    async def _guess(self, path: str) -> Found:
        """Try a path that may well not exist, with as few requests as will tell."""
        first, second = self._ways(path)
        try:
            return await first(path)
        except _NotHere as nothing:
            if not isinstance(nothing.problem, Refused) or nothing.problem.status == 404:
                raise
        return await second(path)

    def _ways(self, path: str) -> tuple[_Way, _Way]:
        """The two ways to begin at a path, the likelier one first."""
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
            # A stateless upstream that was too slow for the probe shows only now what it is.
            if refused.code in (UNSUPPORTED_REVISION, HEADER_MISMATCH):
                with suppress(_NotHere):
                    if found := await self._discover(poster, None):
                        return found
            raise

    async def _by_initialize(self, path: str) -> Found:
        return await self._initialize(self._poster(path))

    async def _discover(self, poster: Poster, seconds: float | None) -> Found | None:
        client = StatelessClient(poster)
        try:
            async with asyncio.timeout(seconds):
                reply = await client.request("server/discover", {})
        except (TimeoutError, ProtocolError, ConnectionLost):
            return None
        except Refused as refused:
            _judge_probe(refused)
            return None
        if R2026_07_28 not in revisions_in(reply.result.get("supportedVersions")):
            return None
        return Found(client, introduction_of(reply, revision=R2026_07_28))

    async def _initialize(self, poster: Poster) -> Found:
        client = StreamableClient(poster)
        self._opened.push_async_callback(client.close)
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
        client = LegacyClient(self._http, self._origin, path, limit=self._limit)
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
        poster = Poster(self._http, self._origin, path, limit=self._limit)
        self._opened.push_async_callback(poster.close_sessions)
        return poster


def _judge_probe(refused: Refused) -> None:
    """Let a refused ``server/discover`` pass if an older upstream would refuse it like this."""
    if refused.status in (401, 403):
        raise refused
    if refused.status in _NO_SUCH_PATH and refused.error is None:
        raise _NotHere(refused)
    supported = supported_by(refused.error)
    if supported and not set(supported) & set(KNOWN_REVISIONS):
        named = plain(", ".join(supported))
        raise ProtocolError(f"The upstream speaks only MCP revisions that we do not know: {named}")


def _is_final(refused: Refused) -> bool:
    """Tell whether it makes no sense to look elsewhere."""
    if refused.status in _NO_SUCH_PATH:
        return False
    return refused.status in (401, 403, 429) or refused.status >= 500 or refused.error is not None


def introduction_in(reply: Reply) -> Introduction:
    """Read the answer to ``initialize``. Raises ProtocolError if the revision is unknown."""
    revision = reply.result.get("protocolVersion")
    if not isinstance(revision, str) or not has_initialize(revision):
        said = plain(str(revision))
        raise ProtocolError(f"The upstream wants MCP revision {said}, which we do not know")
    return introduction_of(reply, revision=revision)


def _most_telling(problems: list[_Problem]) -> _Problem:
    def says_more(problem: _Problem) -> bool:
        return not isinstance(problem, Refused) or problem.status not in _NO_SUCH_PATH

    return next(filter(says_more, problems), problems[0])


def _has_authorization(target: Target) -> bool:
    return any(name.lower() == "authorization" for name, _ in target.headers)


def _why(error: Exception, target: Target) -> str:
    """Say it for people, with what they can do about it."""
    if isinstance(error, Refused) and error.status in (401, 403):
        known = _has_authorization(target)
        return f"{error}: {_WRONG_CREDENTIALS if known else _NO_CREDENTIALS}"
    return plain(str(error)) if isinstance(error, HttpFailed) else str(error)


def _hint_for(why: str) -> str | None:
    return next((hint for part, hint in _HINTS.items() if part in why), None)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
