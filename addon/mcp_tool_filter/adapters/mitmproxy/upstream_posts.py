"""Messages of our own to the upstream: copies that rules send, and answers to what it asks.

mitmproxy forwards what clients send; what we say ourselves goes out on connections of our own, with
the headers of the request that it belongs to.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Mapping
from contextlib import suppress

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.mode_specs import ReverseMode

from mcp_tool_filter.adapters.effects.webhooks import split_url
from mcp_tool_filter.adapters.fetch.http_client import HttpClient, HttpFailed
from mcp_tool_filter.adapters.mitmproxy.flows import head_of
from mcp_tool_filter.adapters.mitmproxy.listeners import target_of
from mcp_tool_filter.adapters.mitmproxy.logins import Logins
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.origin import parse_origin
from mcp_tool_filter.policy.exchange import Client, Via
from mcp_tool_filter.policy.rule_effects import SendCopy

log = logging.getLogger(__name__)

type _Headers = list[tuple[bytes, bytes]]

_MOST_AT_ONCE = 100
_TIMEOUT = 30.0
_LONGEST_ANSWER = 10 * 1024 * 1024
# The client's own connection, or framing that is ours to say.
_NOT_COPIED = frozenset({
    b"host", b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade",
    b"transfer-encoding", b"content-length", b"content-encoding", b"accept-encoding", b"expect",
    b"last-event-id", b"origin",
})  # fmt: skip
_FOR_STRANGERS = frozenset({b"content-type", b"accept", b"mcp-protocol-version", b"mcp-method",
                            b"mcp-name"})  # fmt: skip


class UpstreamPosts:
    """One for each process."""

    def __init__(self, listeners: Mapping[str, Listener], logins: Logins) -> None:
        self._listeners = listeners
        self._logins = logins
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self.id_prefix = f"copy-{secrets.token_hex(8)}-"
        """With it begin the ids of copies: their answers are for nobody."""

    def send_copy(self, effect: SendCopy) -> None:
        """Send a copy of a request; nobody waits for it, and its answer is dropped."""
        self._count += 1
        text = f'{effect.head}"{self.id_prefix}{self._count}"{effect.tail}'.encode()
        flow = effect.origin
        if not isinstance(flow, HTTPFlow):
            return
        if effect.to is not None:
            self._begin(self._post_to(effect.to, _headers_of(flow, _FOR_STRANGERS), text))
        elif flow.websocket is not None:
            ctx.master.commands.call("inject.websocket", flow, False, text, True)
        else:
            self._begin(self._post(flow, flow.request.path, text))

    def answer(self, text: bytes, origin: object, client: Client) -> None:
        """Answer a request of the upstream that came on a stream."""
        if not isinstance(origin, HTTPFlow):
            return
        path = origin.request.path
        if client.via is Via.LEGACY_SSE:
            listener = self._listener_of(origin)
            streams = (one for one in listener.legacy if one.conversation.client is client)
            path = next((stream.target for stream in streams), path)
        self._begin(self._post(origin, path, text))

    def done(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        if len(self._tasks) >= _MOST_AT_ONCE:
            work.close()
            log.warning("Too many messages of our own are under way; one is left out")
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, flow: HTTPFlow, path: str, text: bytes) -> None:
        listener = self._listener_of(flow)
        mode = flow.client_conn.proxy_mode
        assert isinstance(mode, ReverseMode)
        target = target_of(mode, listener.config, ctx.options)
        headers = _headers_of(flow, None)
        said = {name for name, _ in headers}
        for name, value in listener.headers_for(head_of(flow.request)):
            if name.lower().encode() not in said:
                headers.append((name.encode(), value.encode()))
        login = self._logins.login_for(flow, listener, head_of(flow.request))
        client = HttpClient(parse_origin(target.url), headers=headers, tls=target.tls, login=login)
        await _post(client, path, text)

    async def _post_to(self, url: str, headers: _Headers, text: bytes) -> None:
        origin, path = split_url(url)
        await _post(HttpClient(origin, headers=headers), path, text)

    def _listener_of(self, flow: HTTPFlow) -> Listener:
        return self._listeners[flow.client_conn.proxy_mode.full_spec]


def _headers_of(flow: HTTPFlow, only: frozenset[bytes] | None) -> _Headers:
    """Return a request's headers for another message; a stranger gets no credentials."""
    headers = [(name.lower(), value) for name, value in flow.request.headers.fields]
    kept = [
        (name, value)
        for name, value in headers
        if name not in _NOT_COPIED and (only is None or name in only)
    ]
    usual = [
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
    ]
    names = {name for name, _ in kept}
    if b"text/event-stream" in dict(kept).get(b"accept", b"") and b"content-type" not in names:
        kept = [(name, value) for name, value in kept if name != b"accept"]  # of a GET
        names.discard(b"accept")
    return kept + [one for one in usual if one[0] not in names]


async def _post(client: HttpClient, path: str, text: bytes) -> None:
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            client.exchange(b"POST", path, (), text) as response,
        ):
            with suppress(HttpFailed):
                await response.read(_LONGEST_ANSWER)
    except (HttpFailed, TimeoutError) as error:
        log.info("A message of our own did not reach its receiver: %s", error or "no answer")
    finally:
        await client.close()
