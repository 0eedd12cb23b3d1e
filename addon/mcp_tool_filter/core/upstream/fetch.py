"""Fetch all pages of the upstream's tool list, over any transport; say why if it fails.

We also ask an upstream without a ``tools`` capability, because some forget to declare it. Only if
it then answers -32601 does it have no tools, and no pages.

``fetch`` asks as ourselves, at the start. ``fetch_as_client`` asks as a certain client, because the
list may depend on who asks: at the URL of its request, in its session and with its headers, so a
client's list is never fetched with other credentials. In the older transport we ask on the client's
own stream, and keep the answer from it: a second stream of ours could end it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from secrets import randbelow
from typing import Final

import orjson

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import (
    ConnectFailed,
    FetchFailed,
    ListsAfterLogin,
    ProtocolError,
    StartError,
)
from mcp_tool_filter.core.http.asked import HttpExchange
from mcp_tool_filter.core.http.head import NOT_SENT, Head
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import UPSTREAM_LOST, Notification, Request
from mcp_tool_filter.core.messages.scan import scan
from mcp_tool_filter.core.policy.effects import CannotList, FetchTools
from mcp_tool_filter.core.sockets.client import Headers, Room
from mcp_tool_filter.core.sockets.connect import (
    ConnectionLost,
    HttpFailed,
    LoginNeeded,
    NotConnected,
    Reach,
)
from mcp_tool_filter.core.upstream.clients import Borrowed, Poster
from mcp_tool_filter.core.upstream.replies import (
    METHOD_NOT_FOUND,
    Refused,
    Result,
    ResultReply,
    next_cursor,
    plain,
)
from mcp_tool_filter.core.upstream.search import FindTransport, Found, Search
from mcp_tool_filter.core.upstream.target import Target, has_authorization, login_to, open_client

MAX_PAGES: Final = 1000
MAX_TOTAL: Final = 8
"""All pages together may be so many times as long as one message."""
_HINTS = {  # part of a reason: what to do about it
    "certificate verify failed": "--ca FILE trusts its certificate (in mitmproxy: --set"
    " ssl_verify_upstream_trusted_ca=FILE)",
    "TLS error": "If the upstream speaks plain http on this port, write http://",
}
_NO_CREDENTIALS = "the upstream wants credentials: give them with upstream_headers"
_WRONG_CREDENTIALS = "the upstream does not accept the credentials in upstream_headers"
_OTHERS_TIMEOUT = 5.0  # seconds for all lists that are only for the report
_NO_SUCH_PAGE = re.compile(r"HTTP 40[45]\b")


type Ask = Callable[[str, Result], Awaitable[ResultReply]]
"""Sends a request and returns its result."""


async def fetch(target: Target) -> Fetched:
    """Fetch the upstream's tools. Raises ConnectFailed, FetchFailed, LoggedOut."""
    try:
        return await fetch_from(target, lambda opened: Search(target, opened).find())
    except FetchFailed as error:
        if target.endpoint and _NO_SUCH_PAGE.search(error.why):
            error.hint = await _find_elsewhere(target)
        raise


async def _find_elsewhere(target: Target) -> str | None:
    """Return the usual path that speaks MCP, if the configured one does not."""
    try:
        async with AsyncExitStack() as opened, asyncio.timeout(target.connect_timeout):
            found = await Search(replace(target, endpoint=None), opened).find()
    except (TimeoutError, HttpFailed, Refused, ProtocolError, LoginNeeded):
        return None
    return f"MCP is at {target.url}{found.client.path}"


async def fetch_from(target: Target, find: FindTransport) -> Fetched:
    """Fetch the tools of the upstream that ``find`` finds. Raises ConnectFailed, FetchFailed."""
    found: Found | None = None
    async with AsyncExitStack() as opened:
        try:
            async with asyncio.timeout(target.connect_timeout):
                found = await find(opened)
            has_tools = found.introduction.has_tools
            async with asyncio.timeout(target.list_timeout):
                pages = await fetch_pages(
                    found.client.request, target.limit, may_lack_tools=not has_tools
                )
            others = await fetch_others(found.client.request, target.other_lists, target.limit)
        except LoginNeeded as needed:
            raise needed.error from None
        except (TimeoutError, Refused, ProtocolError, HttpFailed) as error:
            raise await _problem(error, target, has_connected=found is not None) from None
    return Fetched(
        transport=found.client.transport,
        revision=found.client.revision,
        endpoint=found.client.path,
        server_name=found.introduction.server_name,
        server_version=found.introduction.server_version,
        instructions=found.introduction.instructions,
        offered=found.introduction.offered,
        sessions=found.client.has_session,
        pages=pages,
        others=others,
    )


async def fetch_pages(
    ask: Ask,
    limit: int,
    meta: Result | None = None,
    *,
    method: str = "tools/list",
    may_lack_tools: bool = False,
) -> tuple[bytes, ...]:
    """Return all pages of a list. Raises Refused, ProtocolError, HttpFailed."""
    at_most = MAX_TOTAL * limit
    pages: list[bytes] = []
    cursors: list[str | None] = [None]
    while True:
        cursor, params = cursors[-1], meta or {}
        try:
            reply = await ask(method, {**params, "cursor": cursor} if cursor else params)
        except Refused as refused:
            if may_lack_tools and refused.code == METHOD_NOT_FOUND:
                return tuple(pages)
            raise
        pages.append(reply.raw)
        if sum(map(len, pages)) > at_most:
            raise ProtocolError(f"The tool list is longer than {at_most} bytes")
        cursor = next_cursor(reply, method)
        if cursor is None:
            return tuple(pages)
        if cursor in cursors:
            raise ProtocolError(
                f'The tool list never ends: it repeats the cursor "{plain(cursor)}"'
            )
        if len(pages) == MAX_PAGES:
            raise ProtocolError(f"The tool list has more than {MAX_PAGES} pages")
        cursors.append(cursor)


async def fetch_others(
    ask: Ask, methods: Sequence[str], limit: int
) -> dict[str, tuple[bytes, ...]]:
    """Return all pages of other lists than that of the tools, as far as the upstream has them.

    They are only for the report, so that no failure matters.
    """
    found: dict[str, tuple[bytes, ...]] = {}
    with suppress(TimeoutError, ProtocolError, HttpFailed, LoginNeeded):
        async with asyncio.timeout(_OTHERS_TIMEOUT if methods else None):
            for method in methods:
                with suppress(Refused):
                    found[method] = await fetch_pages(
                        ask, limit, method=method, may_lack_tools=True
                    )
    return found


async def _problem(error: Exception, target: Target, *, has_connected: bool) -> StartError:
    """Return the error for people; distinguish an upstream that wants a login from one that
    failed."""
    if isinstance(error, TimeoutError) and has_connected:
        return FetchFailed(why=f"Request timeout after {round(target.list_timeout * 1000)}ms")
    if isinstance(error, TimeoutError):
        why = f"Connection timeout after {round(target.connect_timeout * 1000)}ms"
        return ConnectFailed(target.url, why=why)
    if isinstance(error, HttpFailed) and not has_connected:
        why = plain(str(error))
        return ConnectFailed(target.url, why=why, hint=hint_for(why))
    why = _why(error, target)
    if isinstance(error, Refused) and await _wants_login(error, target):
        path = error.path or target.endpoint or "/mcp"
        hint = (
            f"Log in with your browser: mcp-tool-filter login {target.url}{path.partition('?')[0]}"
        )
        return ListsAfterLogin(why=why, path=path, hint=hint)
    return FetchFailed(why=why)


async def _wants_login(refused: Refused, target: Target) -> bool:
    if refused.status not in (401, 403) or has_authorization(target):
        return False
    if refused.challenges:
        return True
    return target.logins is not None and await target.logins.are_offered(target, refused.path)


def _why(error: Exception, target: Target) -> str:
    """Return the reason, with a hint what to do about it."""
    if isinstance(error, Refused) and error.status in (401, 403):
        known = has_authorization(target)
        return f"{error}: {_WRONG_CREDENTIALS if known else _NO_CREDENTIALS}"
    return plain(str(error)) if isinstance(error, HttpFailed) else str(error)


def hint_for(why: str) -> str | None:
    return next((hint for part, hint in _HINTS.items() if part in why), None)


_OURS = frozenset({
    *NOT_SENT, b"content-type", b"content-encoding", b"accept", b"mcp-method", b"mcp-name",
    b"last-event-id",
})  # fmt: skip
"""Headers that describe a request, not its client."""
_ABOUT_CLIENT = "io.modelcontextprotocol/"
_HIGH_ID = 2**52  # so high that no client uses the same number in this session


@dataclass(frozen=True, slots=True)
class AskedBy:
    """The client's request that makes us ask."""

    head: Head
    headers: tuple[tuple[str, str], ...] = ()
    """The operator's headers for it."""
    meta: str | None = None
    """Its ``_meta`` about the client, as JSON, if each request has one."""
    uses_login: bool = False
    """True if it is sent with the stored login."""
    theirs: Conversation | None = None
    """What is said on its stream, in the older transport."""


def asked_by(effect: FetchTools, listener: Listener) -> AskedBy | None:
    """Return who asks with the message of an effect; None if it came to another listener."""
    exchange, message = effect.arrival, effect.message
    assert isinstance(exchange, HttpExchange)
    assert isinstance(message, Request | Notification)
    if exchange.conversation.policy is not listener.policy:
        return None
    head, stream = exchange.head, exchange.stream
    meta = message.params.get("_meta") if message.params else None
    return AskedBy(
        head,
        headers=tuple(listener.headers_for(head)),
        meta=message.place.cut(meta) if meta else None,
        uses_login=listener.takes_headers(head.target) and not head.credentials,
        theirs=stream.conversation if stream else None,
    )


async def fetch_as_client(
    target: Target, asked_by: AskedBy, room: Room | None = None
) -> tuple[bytes, ...]:
    """Return all pages of the tool list. Raises CannotList. ``room`` limits connections."""
    try:
        login = login_to(target) if asked_by.uses_login else None
    except StartError as error:  # the stored login cannot be read
        raise CannotList(error.one_line, is_refusal=True) from None
    http = open_client(target, login, _headers_of(asked_by), room=room)
    try:
        async with asyncio.timeout(target.list_timeout), AsyncExitStack() as opened:
            last_id = _HIGH_ID + randbelow(_HIGH_ID // 2)
            poster = Poster(http, asked_by.head.target, limit=target.limit, last_id=last_id)
            opened.push_async_callback(poster.background.close)
            if asked_by.theirs is not None:
                ask_theirs = Borrowed(poster, asked_by.theirs).request
                return await fetch_pages(ask_theirs, target.limit)
            has_method = asked_by.head.said.method is not None
            named = [(b"mcp-method", b"tools/list")] if has_method else []
            ask = partial(poster.ask, headers=named)
            return await fetch_pages(ask, target.limit, _meta_in(asked_by.meta))
    except (TimeoutError, Refused, ProtocolError, HttpFailed, OSError, TypeError) as error:
        # TypeError: orjson does not write half a surrogate pair, such as in an upstream's cursor.
        why = str(error) or "it took too long"
        is_refusal = _refuses(error, asked_by)
        by_upstream = (error.status, error.challenges) if isinstance(error, Refused) else None
        answer = by_upstream if is_refusal else None
        is_lost = _is_loss(error, target)
        raise CannotList(why, is_refusal=is_refusal, is_lost=is_lost, answer=answer) from None
    finally:
        await http.close()


def _is_loss(error: Exception, target: Target) -> bool:
    """Tell whether the connection to the upstream is lost, or the client's command has ended."""
    if isinstance(error, Refused):
        return error.code == UPSTREAM_LOST and target.answer is not None
    is_unreachable = isinstance(error, NotConnected) and error.reach is Reach.LOST
    return is_unreachable or isinstance(error, ConnectionLost)


def _refuses(error: Exception, asked_by: AskedBy) -> bool:
    """Tell whether the upstream refuses the client, and not only its request for the list."""
    if not isinstance(error, Refused):
        return isinstance(error, NotConnected | LoginNeeded)
    if error.status in (400, 404):
        return asked_by.head.said.session_id is not None
    return error.status == 401 or (error.status == 403 and bool(error.challenges))


def _meta_in(written: str | None) -> dict[str, object]:
    """Return the part of a request's ``_meta`` that is about the client, not about that request.

    It is sent as the client wrote it: parsed and written again, long numbers and half surrogate
    pairs would be lost.
    """
    raw = (written or "null").encode()
    text, root = scan(raw, {}, Limits(message=len(raw)))
    said = [one for one in root.members or () if one.key.startswith(_ABOUT_CLIENT)]
    about = ",".join(text[one.start : one.value.end] for one in said)
    return {"_meta": orjson.Fragment(f"{{{about}}}")} if about else {}


def _headers_of(asked_by: AskedBy) -> Headers:
    ours = [(name.encode(), value.encode()) for name, value in asked_by.headers]
    replaced = {name.lower() for name, _ in ours}
    theirs = [
        (name, value)
        for name, value in asked_by.head.headers
        if name.lower() not in _OURS
        and name.lower() not in replaced
        and not name.lower().startswith(b"mcp-param-")  # it repeats an argument of a call
    ]
    return [*theirs, *ours]
