"""Open a listener for each upstream before the first client is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext

from mitmproxy import ctx
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.http import HTTPFlow
from mitmproxy.options import Options
from mitmproxy.proxy.mode_specs import (
    LocalMode,
    ProxyMode,
    RegularMode,
    ReverseMode,
    TransparentMode,
    UpstreamMode,
)

from mcp_tool_filter.adapters.fetch.as_client import asked_by, fetch_as_client
from mcp_tool_filter.adapters.fetch.target import Target, target_for
from mcp_tool_filter.adapters.fetch.upstream import fetch
from mcp_tool_filter.adapters.fetch.upstream_names import find_names
from mcp_tool_filter.adapters.sockets.connect import Reach, probe
from mcp_tool_filter.adapters.sockets.tls import make_tls_context
from mcp_tool_filter.conversation.memory import Fetched, unlisted
from mcp_tool_filter.conversation.policy_in_force import Observer
from mcp_tool_filter.errors import InvalidOption, ListsAfterLogin, ProtocolError
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.guard import UpstreamNames
from mcp_tool_filter.http.listener import Listener, open_listener
from mcp_tool_filter.http.origin import parse_origin
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.observers.report import Introduction, introduce
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.effects import CannotList
from mcp_tool_filter.policy.exchange import Link
from mcp_tool_filter.policy.patterns import Pattern
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.protocol.messages import Notification, Request

type Fetcher = Callable[[Target], Awaitable[Fetched]]
type NamesFinder = Callable[[str], Awaitable[UpstreamNames]]


FORWARD_MODES = (RegularMode, UpstreamMode, LocalMode, TransparentMode)
"""Modes in which all traffic of clients goes through us."""


def parse_modes(texts: Sequence[str]) -> list[ReverseMode]:
    """Return the reverse proxy modes. Raises InvalidOption for modes that cannot carry MCP."""
    modes = [ProxyMode.parse(text) for text in texts]
    reverse = [mode for mode in modes if isinstance(mode, ReverseMode)]
    for text, mode in zip(texts, modes, strict=True):
        is_ours = isinstance(mode, ReverseMode) and mode.scheme in ("http", "https")
        if not is_ours and not isinstance(mode, FORWARD_MODES):
            why = (
                "The tool filter sits in front of an MCP server: --mode reverse:http://host:port;"
                " or of a client: --mode regular, upstream:URL, or local:PROGRAM"
            )
            raise InvalidOption("--mode", text, why=why)
    return reverse


def is_forward(texts: Sequence[str]) -> bool:
    """Tell whether one of the modes is a forward proxy."""
    return any(isinstance(ProxyMode.parse(text), FORWARD_MODES) for text in texts)


@dataclass(frozen=True, slots=True)
class NewList:
    """The changes in a new snapshot."""

    news: tuple[str, ...]
    has_changed: bool
    """True if lists that clients may have seen have changed."""


class Listeners:
    """A listener for each mode, all with the same configuration."""

    def __init__(self, fetch: Fetcher = fetch, links: tuple[Link, ...] = ()) -> None:
        self.config = Config()
        self.by_mode: dict[str, Listener] = {}
        """The listeners by the full text of their mode, which is unique."""
        self.find_intercepted: Callable[[HTTPFlow], Listener] | None = None
        """Returns the listener of a forward proxy's flow."""
        self.observer_for: Callable[[str], Observer | None] = lambda _name: None
        """Returns the observer of the listener with this name."""
        self._fetch = fetch
        self.find_names: NamesFinder = find_names
        self._links = links

    def adopt(self, config: Config) -> None:
        """Use another configuration from now on. If it raises, nothing has changed."""
        for listener in self.by_mode.values():
            listener.policy.adopt(config)
        self.config = config

    def unmatched(self) -> list[Pattern]:
        """Return the patterns that match no tool of any upstream."""
        lists = [listener.snapshot.unmatched for listener in self.by_mode.values()]
        return [one for one in lists[0] if all(one in other for other in lists)] if lists else []

    async def open(self, mode: ReverseMode, options: Options) -> Listener:
        """Fetch the upstream's tools and open its listener. Raises StartError."""
        target = target_of(mode, self.config, options)
        fetched = await self._fetch_or_wait(target)
        listener = open_listener(
            upstream=target.url,
            config=self.config,
            fetched=fetched,
            observe=self.observer_for(mode.full_spec),
            names=await self.find_names(target.url),
            keeps_host=options.keep_host_header,
        )
        listener.policy.links = self._links
        self.by_mode[mode.full_spec] = listener
        return listener

    async def _fetch_or_wait(self, target: Target) -> Fetched:
        """Fetch the tools; return an empty list if the upstream requires a login and says how."""
        try:
            return await self._fetch(target)
        except ListsAfterLogin as error:
            if self.config.requires_list:
                raise
            return unlisted(error.path)

    async def fetch_again(self, mode: str, options: Options) -> NewList:
        """Take a new snapshot for one listener. If it raises StartError, nothing has changed."""
        listener = self.by_mode[mode]
        if listener.is_forward:  # each asker's next list becomes its new snapshot
            listener.policy.kinds.forget_all()
            return NewList(("each client gets a new list when it asks for one",), has_changed=True)
        target = target_of(parse_modes([mode])[0], self.config, options)
        was_listed = listener.fetched.is_listed
        fetched = await (self._fetch(target) if was_listed else self._fetch_or_wait(target))
        old = listener.snapshot
        has_changed = fetched.pages != listener.fetched.pages
        listener.policy.take(fetched)
        listener.policy.kinds.forget_all()
        before, after = ({*one.allowed, *one.denied} for one in (old, listener.snapshot))
        news = [f"new tool {shown(name)}" for name in sorted(after - before)]
        news += [f"tool {shown(name)} is gone" for name in sorted(before - after)]
        news += [
            f"tool {shown(name)} has changed"
            for name, raw in old.allowed.items()
            if listener.snapshot.allowed.get(name, raw) != raw
        ]
        if not fetched.is_listed:
            news = ["its tools are listed when a client logs in"]
        return NewList(tuple(news), has_changed or not fetched.is_listed)

    def name_of(self, mode: str) -> str:
        """Return the URL of an upstream for messages, if there are several upstreams."""
        return f" {shown_url(self.by_mode[mode].upstream)}" if len(self.by_mode) > 1 else ""

    def listener_of(self, flow: HTTPFlow) -> Listener:
        listener = self.by_mode.get(flow.client_conn.proxy_mode.full_spec)
        if listener is None:
            if self.find_intercepted and isinstance(flow.client_conn.proxy_mode, FORWARD_MODES):
                return self.find_intercepted(flow)
            raise ProtocolError("a listener whose upstream is not known")
        return listener

    def upstream_of(self, flow: object) -> str:
        """Return the URL of the upstream behind a flow's listener, without its query."""
        if not isinstance(flow, HTTPFlow):
            return ""
        listener = self.by_mode.get(flow.client_conn.proxy_mode.full_spec)
        path = listener.fetched.endpoint.partition("?")[0] if listener else ""
        return listener.upstream + path if listener else ""

    def find(self, flow: HTTPFlow) -> tuple[Listener, Target]:
        """Return the listener of a flow, and how to reach its upstream."""
        listener = self.listener_of(flow)
        name = flow.client_conn.proxy_mode.full_spec
        return listener, self.target_at(name, listener, ctx.options)

    def target_at(self, name: str, listener: Listener, options: Options) -> Target:
        """Return how to reach the upstream of a listener."""
        if listener.is_forward:
            return target_for(self.config, listener.upstream, _tls_to(listener.upstream, options))
        return target_of(parse_modes([name])[0], self.config, options)

    async def fetch_as_client(
        self, exchange: HttpExchange, message: Request | Notification
    ) -> tuple[bytes, ...]:
        """Return the list that a client would get. Raises CannotList."""
        policy = exchange.conversation.policy
        for mode, listener in self.by_mode.items():
            if listener.policy is policy:
                target = self.target_at(mode, listener, ctx.options)
                return await fetch_as_client(target, asked_by(listener, exchange, message))
        raise CannotList("the listener is gone")

    async def probe(self, mode: ReverseMode) -> Reach:
        """Return whether the upstream of this mode still accepts connections."""
        target = target_of(mode, self.config, ctx.options)
        return await probe(parse_origin(target.url), target.tls, self.config.connection_timeout)


def target_of(mode: ReverseMode, config: Config, options: Options) -> Target:
    host, port = mode.address
    certificate = options.client_certs
    if certificate and Path(certificate).expanduser().is_dir():  # mitmproxy also accepts a folder
        own = Path(certificate).expanduser() / f"{host}.pem"
        certificate = str(own) if own.exists() else None
    tls = None
    if mode.scheme == "https":
        tls = make_tls_context(
            insecure=options.ssl_insecure,
            trusted_ca=options.ssl_verify_upstream_trusted_ca,
            trusted_confdir=options.ssl_verify_upstream_trusted_confdir,
            client_cert=certificate,
        )
    url = f"{mode.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return target_for(config, url, tls)


def _tls_to(url: str, options: Options) -> SSLContext | None:
    """Return the TLS settings for an upstream that a client has named, without our client
    certificate."""
    if not url.startswith("https:"):
        return None
    return make_tls_context(
        insecure=options.ssl_insecure,
        trusted_ca=options.ssl_verify_upstream_trusted_ca,
        trusted_confdir=options.ssl_verify_upstream_trusted_confdir,
    )


def introduce_to(mode: ReverseMode, listener: Listener, server: Proxyserver | None) -> Introduction:
    """Return the introduction for the report, once mitmproxy listens."""
    return introduce(listener.upstream, listener.fetched, _address_of(mode, server))


def _address_of(mode: ReverseMode, server: Proxyserver | None) -> str:
    for instance in server.servers if server else ():
        if instance.mode == mode and instance.listen_addrs:
            host, port, *_ = instance.listen_addrs[0]
            return f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return "http://"
