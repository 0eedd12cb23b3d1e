"""Forward proxies: the MCP endpoints that their clients use, each with a site of its own.

The upstreams of a forward proxy are not configured. A URL becomes an endpoint when MCP is sent to
it, and gets its own site; an upstream of the older transport names further URLs on its stream.
Nothing is fetched at start: the patterns apply at once, and each asker's first list becomes its
snapshot.

An ``Endpoints`` is for the process, a ``Connection`` for one client connection, or for one tunnel
through it: it tells the engine where requests go.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

from mcp_tool_filter.core.conversation.memory import unlisted
from mcp_tool_filter.core.engine.service import Address, Service, nothing
from mcp_tool_filter.core.engine.wire import Fault, RequestHead
from mcp_tool_filter.core.errors import InvalidOption
from mcp_tool_filter.core.http.listener import open_listener
from mcp_tool_filter.core.http.urls import Origin, parse_origin
from mcp_tool_filter.core.process.sentences import Once
from mcp_tool_filter.core.upstream.target import Target, target_for
from mcp_tool_filter.rooms.forward.passing import path_of

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.config import Config
    from mcp_tool_filter.core.process.proxy import Proxy
    from mcp_tool_filter.core.process.site import Site
    from mcp_tool_filter.core.sockets.connect import Via

log = logging.getLogger(__name__)

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")

MOST_SITES = 1000
"""The least recently used is forgotten first."""
MOST_URLS = 10_000


class Endpoints:
    """The endpoints of all forward proxies of the process."""

    def __init__(self, proxy: Proxy) -> None:
        self.urls: set[str] = set()
        """The URLs to which MCP was sent, without queries."""
        self.origins: set[str] = set()
        """The origins to which anything was sent."""
        self._proxy = proxy
        self._sites: OrderedDict[tuple[Origin, str, Via | None], Site] = OrderedDict()
        """By origin, target and the proxy behind us."""
        self._at: dict[Origin, list[Site]] = {}
        self._answered: OrderedDict[tuple[Origin, str], None] = OrderedDict()
        self._closed = Once(MOST_URLS)
        self._others: Service | None = None

    @property
    def others(self) -> Service:
        """Limits and seats for what is not MCP."""
        config = self._proxy.config
        if self._others is None or self._others.listener.config is not config:
            listener = open_listener(
                upstream="http://others.invalid", config=config, fetched=unlisted("/")
            )
            listener.is_forward = True
            seats = self._proxy.crowd.seats
            self._others = Service(listener, b"", self._proxy.effects, seats=seats)
        return self._others

    def has(self, origin: Origin, target: str) -> bool:
        """Tell whether a URL is an MCP endpoint, as far as answers have shown."""
        is_known = (origin, _plain(target)) in self._answered
        return is_known or self._named_by_stream(origin, target) is not None

    def note_request(self, origin: Origin) -> None:
        """Note that something was sent there."""
        if len(self.origins) < MOST_URLS:
            self.origins.add(origin.url)

    def note_answer(self, origin: Origin, target: str, status: int) -> None:
        """Note the answer to a request of MCP: if it succeeded, its URL is an endpoint."""
        if status < 300:
            key = origin, _plain(target)
            self._answered[key] = None
            self._answered.move_to_end(key)
            while len(self._answered) > MOST_URLS:
                self._answered.popitem(last=False)

    def note_closed(self, host: str, why: str) -> None:
        """Say once for each host that we close what we cannot read."""
        if self._closed.is_new(host):
            log.warning("Closed a connection to %s, which is not HTTP as we read it: %s", host, why)

    def site_of(self, origin: Origin, target: str, via: Via | None = None) -> Site:
        """Return the site of a request of MCP; open one if the endpoint is new, or is reached over
        another proxy."""
        if (site := self._named_by_stream(origin, target)) is not None:
            return site
        key = origin, target, via
        if key not in self._sites:
            self._sites[key] = self._open(origin, target, via)
        self._sites.move_to_end(key)
        return self._sites[key]

    def _named_by_stream(self, origin: Origin, target: str) -> Site | None:
        """Return the site whose stream has named this endpoint."""
        for site in self._at.get(origin, ()):
            if target in site.listener.legacy.endpoints:
                return site
        return None

    def _open(self, origin: Origin, target: str, via: Via | None) -> Site:
        proxy = self._proxy
        while len(self._sites) >= MOST_SITES:
            (at, _, _), oldest = self._sites.popitem(last=False)
            self._at[at].remove(oldest)
            del proxy.sites[oldest.name], proxy.listeners[oldest.name]
            proxy.statistics.pop(oldest.name, None)
        listener = open_listener(upstream=origin.url, config=proxy.config, fetched=unlisted(target))
        listener.is_forward = True
        tls = proxy.around.make_tls() if origin.tls else None

        def find_target(config: Config) -> Target:
            target = target_for(config, origin.url, tls)
            return replace(target, address=origin.address, via=via, uses_login=False)

        site = proxy.add(self._name(origin, target), listener, find_target)
        site.suspect = site.note_end_of_stream = nothing  # there are others
        if len(self.urls) < MOST_URLS:
            self.urls.add(origin.url + _plain(target))
        self._at.setdefault(origin, []).append(site)
        return site

    def _name(self, origin: Origin, target: str) -> str:
        """Name a site by its URL, without the query, which may hold a secret."""
        plain = origin.url + _plain(target)
        name, number = plain, 1
        while name in self._proxy.sites:
            number += 1
            name = f"{plain} ({number})"
        return name


class Connection:
    """Where the requests of one connection go: the engine's ``Places``."""

    def __init__(
        self,
        endpoints: Endpoints,
        tunnel: Address | None,
        *,
        open_tunnel: Callable[[Address, bytes], None] | None = None,
        via: Callable[[str], Via | None] = lambda _host: None,
        admit: Callable[[RequestHead], None] = lambda _head: None,
        name: str | None = None,
    ) -> None:
        """``tunnel`` is where the connection leads; None if each request names its server. Then
        ``open_tunnel`` gets where a tunnel is to lead, and what came ahead. ``via`` returns
        the proxy behind us that leads to a host. ``admit`` raises Fault for a client that may not
        use us. ``name`` is the server's name in TLS."""
        self._admit, self._via, self._name = admit, via, name
        self.others = endpoints.others
        self._endpoints, self._tunnel, self._open_tunnel = endpoints, tunnel, open_tunnel

    def address_of(self, head: RequestHead) -> Address:
        """Return where a request goes. Raises Fault if it does not say so."""
        if (at := self._tunnel) is None:
            self._admit(head)
            try:
                named = parse_origin(head.target)
            except InvalidOption:
                raise Fault("a request to a proxy without the server's URL") from None
            if named.tls:
                raise Fault("a URL that needs a tunnel")
            at = Address(named.host, named.port, named.tls)
        self._endpoints.note_request(self._origin_of(at, head))
        return at

    def open_tunnel(self, head: RequestHead, ahead: bytes) -> None:
        try:
            to = parse_origin(f"http://{head.target}")
        except InvalidOption:
            to = None
        if to is None or self._open_tunnel is None or not _AUTHORITY.fullmatch(head.target):
            raise Fault("CONNECT to no server")
        self._admit(head)
        self._open_tunnel(Address(to.host, to.port, is_tls=False), ahead)

    def for_proxy(self, head: RequestHead) -> tuple[str, bytes | None] | None:
        via = self._via(parse_origin(head.target).host) if self._tunnel is None else None
        return None if via is None else (head.target, via.login)

    def is_endpoint(self, at: Address, head: RequestHead) -> bool:
        return self._endpoints.has(self._origin_of(at, head), path_of(head.target))

    def service_of(self, at: Address, head: RequestHead) -> Service:
        via = self._via(at.host)
        return self._endpoints.site_of(self._origin_of(at, head), path_of(head.target), via)

    def note_answer(self, at: Address, head: RequestHead, status: int) -> None:
        self._endpoints.note_answer(self._origin_of(at, head), path_of(head.target), status)

    def _origin_of(self, at: Address, head: RequestHead) -> Origin:
        """Return the origin of a request, by the name that the client uses.

        Where a tunnel leads to an address, the name is that of its certificate, or without TLS that
        of the request: anybody can send such a name, so another address is another origin.
        """
        host, address = at.host, ""
        if self._name:
            host = self._name
        elif self._tunnel is not None and _is_address(host):
            written = [value for name, value in head.fields if name.lower() == b"host"]
            if len(written) == 1:
                with suppress(InvalidOption):
                    host = parse_origin(f"http://{written[0].decode('latin-1')}").host
            address = at.host if host != at.host else ""
        return Origin(host.lower(), at.port, at.is_tls, address)

    def note_closed(self, why: str) -> None:
        self._endpoints.note_closed(self._tunnel.host if self._tunnel else "a proxy's client", why)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _plain(target: str) -> str:
    return target.partition("?")[0]
