"""Forward proxies: open a listener for each MCP endpoint when a client first uses it.

Nothing is fetched at start. The patterns apply at once, and each asker's first list becomes its
snapshot. No URL is rewritten, because clients use each upstream's own name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow, Request
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.mode_specs import LocalMode
from mitmproxy.tls import TlsData

from mcp_tool_filter.adapters.effects.carry_out import Effects
from mcp_tool_filter.adapters.mitmproxy.forward.endpoints import MOST_ENDPOINTS, Attach, Endpoints
from mcp_tool_filter.adapters.mitmproxy.forward.event_streams import through_stream
from mcp_tool_filter.adapters.mitmproxy.forward.flows import (
    head_of,
    remove_upgrade,
)
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import real_request
from mcp_tool_filter.adapters.mitmproxy.forward.known import Known, KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import FORWARD_MODES, Listeners
from mcp_tool_filter.adapters.mitmproxy.forward.local_mode import watch_redirector
from mcp_tool_filter.adapters.mitmproxy.forward.origins import origin_of, path_of
from mcp_tool_filter.adapters.mitmproxy.forward.safe.interception import (
    InterceptedStream,
    guard_forward_proxies,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.interceptor import Chunks, install_interceptor
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import stream_of
from mcp_tool_filter.adapters.mitmproxy.forward.streams import injector
from mcp_tool_filter.adapters.mitmproxy.forward.websocket import (
    Socket,
    judge_or_drop,
    newest_message,
)
from mcp_tool_filter.errors import InvalidOption, ProtocolError
from mcp_tool_filter.http.exchange import HttpExchange, Passed
from mcp_tool_filter.http.head import is_websocket
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.media_type import may_be_event_stream
from mcp_tool_filter.http.recognise import (
    BodyReader,
    EventPeeker,
    TrafficKind,
    Treatment,
    has_hidden_line,
    is_mcp_head,
    kind_of_body,
)
from mcp_tool_filter.policy.config import Config

log = logging.getLogger(__name__)

type Hide = Callable[[HTTPFlow], None]
"""Hides the secrets in the head of a request before others see it."""
_READABLE = ("websocket", "h2", "http", "tls")
"""Refused upgrades: they would carry HTTP that we do not read."""
_REFUSED: dict[str, Callable[[Config], object]] = {
    "upstream_headers": lambda config: config.upstream_headers,
    "paths": lambda config: config.only_mcp,
    "endpoint": lambda config: config.endpoint,
    "require_list": lambda config: config.requires_list,
}
"""Options that concern a single upstream."""


class Interception:
    """Decides what is MCP, and which listener judges it."""

    def __init__(
        self,
        listeners: Listeners,
        known: KnownFlows,
        effects: Effects,
        endpoints: Endpoints,
        hide: Hide,
    ) -> None:
        self._listeners = listeners
        self._hide = hide
        self._known = known
        self._effects = effects
        self._endpoints = endpoints
        self.note_answer = endpoints.note_answer
        self.origins: set[str] = set()
        """Origins to which anything was sent."""
        self.refused_tls: set[str] = set()
        """Hosts for which a client did not accept our certificate."""
        self._not_trusted: set[str] = set()
        self._told: set[str] = set()
        self._watch: asyncio.Future[None] | None = None  # watches local mode
        self.is_direct: Callable[[str], bool] = lambda _host: False
        self.on_end: Callable[[str], None] = log.error
        """Called with the reason when the interception ends."""

    @property
    def endpoints(self) -> Set[str]:
        """The URLs to which MCP was sent, without queries."""
        return self._endpoints.urls

    # Start

    @staticmethod
    def refuse_options(config: Config) -> None:
        """Raise InvalidOption for an option that concerns a single upstream."""
        for name, is_given in _REFUSED.items():
            if is_given(config):
                why = "It is for a single upstream, but a forward proxy has many. Leave it out."
                raise InvalidOption(name, "…", why=why)

    async def begin(self, modes: Sequence[str], report: Callable[[str], None]) -> None:
        """Start, and report where clients are served. Raises StartError."""
        server = ctx.master.addons.get("proxyserver")
        for instance in server.servers if server else ():
            if (
                not isinstance(instance.mode, FORWARD_MODES)
                or instance.mode.full_spec in self._told
            ):
                continue
            self._told.add(instance.mode.full_spec)
            if isinstance(instance.mode, LocalMode):
                self._watch = await watch_redirector(instance, lambda why: self.on_end(why))
                report("Filtering MCP of local programs. Their other traffic passes untouched.")
            elif instance.listen_addrs:
                host, port, *_ = instance.listen_addrs[0]
                where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                report(
                    f"Filtering MCP of all clients that use the proxy http://{where}."
                    " Their other traffic passes untouched."
                )

    # For streams: see ``safe/interception.Interceptor``

    def look_at_head(
        self, context: Context, mode: HTTPMode, request: Request, *, has_body: bool
    ) -> Treatment | BodyReader:
        head = head_of(request)
        if (head.get(b"transfer-encoding") or "chunked").strip().lower() != "chunked":
            return Treatment.MCP  # some server may find a message in it; the filter refuses it
        origin = origin_of(request, context, mode).url
        if len(self.origins) < MOST_ENDPOINTS:
            self.origins.add(origin)
        is_endpoint = self._endpoints.has(origin, head.target)
        if is_mcp_head(head) or has_hidden_line(head):
            return Treatment.MCP
        if not has_body:
            is_stream = head.method == "GET" and not is_websocket(head)
            return (
                Treatment.MCP
                if is_endpoint and (is_stream or is_websocket(head))
                else Treatment.OTHER
            )
        coding = ",".join(request.headers.get_all("content-encoding"))
        return BodyReader(coding, self._listeners.config.limits, is_endpoint=is_endpoint)

    def prepare_other(self, flow: HTTPFlow) -> None:
        headers = flow.request.headers
        is_for_proxy = bool(flow.request.authority) and not self.is_direct(flow.request.host)
        if is_for_proxy and (login := ctx.master.addons.get("upstreamauth")):
            login.requestheaders(flow)
        if "event-stream" in headers.get("accept", "").lower() and flow.request.method == "GET":
            headers["accept-encoding"] = "identity"  # we must be able to read MCP events
        if "upgrade" in headers and not is_websocket(head_of(flow.request)):
            wanted = headers["upgrade"].lower()
            if any(name in wanted for name in _READABLE):
                remove_upgrade(flow.request)

    def look_at_answer(self, flow: HTTPFlow) -> Chunks | None:
        response = flow.response
        assert response
        if response.status_code == 101:
            asked = flow.request.headers.get("upgrade", "").strip().lower()
            if not asked or response.headers.get("upgrade", "").strip().lower() != asked:
                raise ProtocolError("an upgrade that was not requested")
            return None
        kind = response.headers.get("content-type", "")
        if flow.request.method != "GET" or not may_be_event_stream(kind):
            return None
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise ProtocolError("an event stream in a coding that was not requested")
        return self._peek(flow)

    def look_at_message(self, flow: HTTPFlow) -> None:
        message = newest_message(flow)
        if message.injected:
            return
        known = self._known.get(flow)
        if known is None:
            if kind_of_body(message.content) is not TrafficKind.MCP:
                return
            listener = self._endpoints.listener_of(flow)
            exchange = _begin(listener, flow)
            self._hide(flow)
            known = self._known[flow] = Known(listener, exchange)
            conversation = listener.open_socket(exchange)
            known.socket = Socket(flow, conversation, self._effects.carry_out)
        judge_or_drop(known.socket, flow, message)

    # Event streams of other traffic that may turn out to be MCP

    def _peek(self, flow: HTTPFlow) -> Chunks:
        peeker = EventPeeker(self._listeners.config.limits)
        through: Chunks | None = None

        def on_chunk(chunk: bytes) -> list[bytes]:
            nonlocal through
            if through is not None:
                return through(chunk)
            passed, rest = peeker.feed(chunk) if chunk else peeker.finish()
            pieces = [passed] if passed else []
            if rest is not None:
                through = self._adopt(flow)
                pieces += through(rest)
                if not chunk:
                    pieces += through(b"")
            return pieces

        return on_chunk

    def _adopt(self, flow: HTTPFlow) -> Chunks:
        """Filter an event stream from now on."""
        listener = self._endpoints.listener_of(flow)
        exchange = _begin(listener, flow)
        self._hide(flow)
        known = self._known[flow] = Known(listener, exchange)
        stream = listener.open_stream(exchange, real_request(flow).path, injector(flow))
        known.stream = stream
        through = through_stream(flow, stream, self._effects)
        if isinstance(adopted := stream_of(flow), InterceptedStream):
            adopted.adopt()
        self._endpoints.note_answer(flow)
        return through

    def upstream_of(self, flow: object) -> str:
        """Return the URL of a flow's upstream, without its query; empty for flows of other
        modes."""
        if isinstance(flow, HTTPFlow) and isinstance(flow.client_conn.proxy_mode, FORWARD_MODES):
            return origin_of(flow.request).url + path_of(flow.request.path)
        return ""

    # TLS

    def tls_failed(self, data: TlsData) -> None:
        """Report a client that did not accept our certificate: nothing of it passes."""
        host = data.context.client.sni or (data.context.server.address or ("?",))[0]
        if host not in self.refused_tls and len(self.refused_tls) < MOST_ENDPOINTS:
            self.refused_tls.add(host)
            log.warning(
                "A client does not trust our certificate for %s: it cannot connect there",
                host,
            )

    def tls_failed_upstream(self, data: TlsData) -> None:
        """Report an upstream whose certificate we do not trust, or that refuses TLS with us."""
        address = data.context.server.address
        host = data.conn.sni or (address[0] if address else "?")
        if host not in self._not_trusted and len(self._not_trusted) < MOST_ENDPOINTS:
            self._not_trusted.add(host)
            why = data.conn.error or "TLS failed"
            log.warning("No connection to %s: %s (--ca FILE trusts its certificate)", host, why)


def intercept(
    listeners: Listeners, known: KnownFlows, effects: Effects, attach: Attach, hide: Hide
) -> Interception:
    """Intercept all clients of forward proxies that connect from now on."""
    endpoints = Endpoints(listeners, attach)
    interception = Interception(listeners, known, effects, endpoints, hide)
    listeners.find_intercepted = endpoints.listener_of
    install_interceptor(interception)
    guard_forward_proxies()
    return interception


def _begin(listener: Listener, flow: HTTPFlow) -> HttpExchange:
    """Return an exchange for a request that passed unjudged.

    Raises ProtocolError if it must not pass.
    """
    outcome = listener.judge_request(head_of(flow.request, flow.client_conn), b"", flow)
    if not isinstance(outcome, Passed):
        raise ProtocolError("an answer of MCP to a request that is refused")
    return outcome.exchange
