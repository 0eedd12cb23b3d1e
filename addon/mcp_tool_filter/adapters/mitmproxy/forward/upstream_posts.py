"""Send our own messages to the upstream: copies that rules send, and replies to its requests.

mitmproxy forwards the clients' messages; our own go out on our own connections, with the headers of
the request they belong to.
"""

from __future__ import annotations

from collections.abc import Callable

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.effects.sending import Copies, post_and_forget, with_usual
from mcp_tool_filter.adapters.fetch.target import Target
from mcp_tool_filter.adapters.mitmproxy.forward.flows import head_of
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import real_request
from mcp_tool_filter.adapters.mitmproxy.forward.logins import Logins
from mcp_tool_filter.adapters.sockets.client import Headers, HttpClient
from mcp_tool_filter.http.head import headers_after
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.origin import parse_origin
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


type Find = Callable[[HTTPFlow], tuple[Listener, Target]]
"""Returns the listener of a flow, and the target for its upstream."""


class UpstreamPosts:
    """Posts all such messages of the process."""

    def __init__(self, find: Find, logins: Logins) -> None:
        self._find = find
        self._logins = logins
        self._copies = Copies(self._copy_to_upstream)
        self.id_prefix = self._copies.id_prefix
        self.done = self._copies.done

    def send_copy(self, effect: SendCopy) -> None:
        """Send a copy of a request; a server other than the upstream gets no credentials of the
        client."""
        flow = effect.origin
        if isinstance(flow, HTTPFlow):
            text = f"{effect.head}0{effect.tail}".encode()
            self._copies.send(effect, self._headers_of(flow, text, _FOR_STRANGERS))

    def answer(self, text: bytes, origin: object, client: Client) -> None:
        """Send our reply to a request of the upstream that came on a stream."""
        if not isinstance(origin, HTTPFlow):
            return
        path = real_request(origin).path
        if client.via is Via.LEGACY_SSE:
            listener, _ = self._find(origin)
            streams = (one for one in listener.legacy if one.conversation.client is client)
            path = next((stream.target for stream in streams), path)
        self._copies.begin(self._post(origin, path, text))

    def _copy_to_upstream(self, text: bytes, effect: SendCopy) -> None:
        flow = effect.origin
        assert isinstance(flow, HTTPFlow)
        if flow.websocket is not None:
            ctx.master.commands.call("inject.websocket", flow, False, text, True)
        else:
            self._copies.begin(self._post(flow, real_request(flow).path, text))

    async def _post(self, flow: HTTPFlow, path: str, text: bytes) -> None:
        listener, target = self._find(flow)
        headers = list(self._headers_of(flow, text))
        said = {name for name, _ in headers}
        head = head_of(real_request(flow))
        for name, value in listener.headers_for(head):
            if name.lower().encode() not in said:
                headers.append((name.encode(), value.encode()))
        login = self._logins.login_for(flow, listener, head)
        client = HttpClient(parse_origin(target.url), headers=headers, tls=target.tls, login=login)
        await post_and_forget(client, path, text)

    def _headers_of(
        self, flow: HTTPFlow, text: bytes, only: frozenset[bytes] | None = None
    ) -> Headers:
        """Return a request's headers for another message, with the headers that mirror its body."""
        request = real_request(flow)
        limits = self._find(flow)[0].config.limits
        after = headers_after(head_of(request), text, limits)
        changed = {name.encode(): value for name, value in after}
        headers = [(name.lower(), value) for name, value in request.headers.fields]
        headers = [one for one in headers if one[0] not in changed]
        headers += [(name, value.encode()) for name, value in changed.items() if value is not None]
        is_get = flow.request.method.upper() == "GET"  # its Accept differs from a POST's
        return with_usual([
            (name, value)
            for name, value in headers
            if name not in _NOT_COPIED
            and (only is None or name in only)
            and not (is_get and name == b"accept")
        ])  # fmt: skip
