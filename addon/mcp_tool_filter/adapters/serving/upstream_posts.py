"""Send our own messages to the upstream: copies that rules send, and replies to its requests.

The engine forwards the clients' messages; our own go out on our own connections, with the headers
of the request they belong to. Imported only if there are rules.
"""

from __future__ import annotations

from mcp_tool_filter.adapters.rules.sending import Copies, post_and_forget, with_usual
from mcp_tool_filter.adapters.serving.logins import login_for
from mcp_tool_filter.adapters.serving.site import Site, head_of, site_of
from mcp_tool_filter.adapters.sockets.client import Headers, HttpClient
from mcp_tool_filter.engine.exchange import Exchange
from mcp_tool_filter.http.head import headers_after
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.policy.exchange import Client, Via
from mcp_tool_filter.policy.rule_effects import SendCopy

# Headers of the client's connection or framing, which differ for our message.
_NOT_COPIED = frozenset({
    b"host", b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade",
    b"transfer-encoding", b"content-length", b"content-encoding", b"accept-encoding", b"expect",
    b"last-event-id", b"origin",
})  # fmt: skip
_FOR_STRANGERS = frozenset({
    b"content-type", b"accept", b"mcp-protocol-version", b"mcp-method", b"mcp-name",
})  # fmt: skip


class UpstreamPosts:
    """Posts all such messages of the process."""

    def __init__(self) -> None:
        self._copies = Copies(self._copy_to_upstream)
        self.id_prefix = self._copies.id_prefix
        self.done = self._copies.done

    def send_copy(self, effect: SendCopy) -> None:
        """Send a copy of a request; a server other than the upstream gets no credentials of the
        client."""
        exchange = effect.origin
        if isinstance(exchange, Exchange):
            text = f"{effect.head}0{effect.tail}".encode()
            self._copies.send(effect, _headers_of(exchange, text, _FOR_STRANGERS))

    def answer(self, text: bytes, origin: object, client: Client) -> None:
        """Send our reply to a request of the upstream that came on a stream."""
        if not isinstance(origin, Exchange):
            return
        site, path = site_of(origin), origin.head.target
        if client.via is Via.LEGACY_SSE:
            streams = (one for one in site.listener.legacy if one.conversation.client is client)
            path = next((stream.target for stream in streams), path)
        self._copies.begin(_post(site, origin, path, text))

    def _copy_to_upstream(self, text: bytes, effect: SendCopy) -> None:
        exchange = effect.origin
        assert isinstance(exchange, Exchange)
        if exchange.seat is not None:
            exchange.seat.say(text)
        else:
            post = _post(site_of(exchange), exchange, exchange.head.target, text)
            self._copies.begin(post)


async def _post(site: Site, exchange: Exchange, path: str, text: bytes) -> None:
    listener, target, head = site.listener, site.target, head_of(exchange)
    headers = list(_headers_of(exchange, text))
    said = {name for name, _ in headers}
    for name, value in listener.headers_for(head):
        if name.lower().encode() not in said:
            headers.append((name.encode(), value.encode()))
    login = login_for(site.login, listener, head)
    client = HttpClient(
        parse_origin(target.url),
        headers=headers,
        tls=target.tls,
        login=login,
        answer=target.answer,
    )
    await post_and_forget(client, path, text)


def _headers_of(exchange: Exchange, text: bytes, only: frozenset[bytes] | None = None) -> Headers:
    """Return a request's headers for another message, with the headers that mirror its body."""
    head, limits = head_of(exchange), exchange.service.listener.config.limits
    changed = {name.encode(): value for name, value in headers_after(head, text, limits)}
    headers = [(name.lower(), value) for name, value in head.headers]
    headers = [one for one in headers if one[0] not in changed]
    headers += [(name, value.encode()) for name, value in changed.items() if value is not None]
    is_get = head.method.upper() == "GET"  # its Accept differs from a POST's
    return with_usual([
        (name, value)
        for name, value in headers
        if name not in _NOT_COPIED
        and (only is None or name in only)
        and not (is_get and name == b"accept")
    ])  # fmt: skip
