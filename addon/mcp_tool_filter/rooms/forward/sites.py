"""Forward proxies: a site for each named host, and the way of each request.

Each named host is a reverse proxy under its own name. Nothing is fetched at start: the patterns
apply at once, and each asker's first list becomes its snapshot. ``Sites`` is for the process,
``ForwardRoutes`` for one client connection, or for one tunnel through it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.core.conversation.memory import unlisted
from mcp_tool_filter.core.engine.service import Address, GoOn, Service, nothing
from mcp_tool_filter.core.engine.wire import Fault, RequestHead
from mcp_tool_filter.core.errors import InvalidOption
from mcp_tool_filter.core.http.head import problem_in_body, text_of, values_of
from mcp_tool_filter.core.http.listener import Listener, open_listener
from mcp_tool_filter.core.http.urls import Origin, parse_origin
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.site import Site, head_of, move_to
from mcp_tool_filter.core.upstream.target import Target, target_for
from mcp_tool_filter.rooms.forward.client import Route
from mcp_tool_filter.rooms.forward.hosts import NamedHosts, are_same, is_address

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.process.proxy import Proxy
    from mcp_tool_filter.core.sockets.connect import ProxyHop

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_MISDIRECTED = 421

MOST_SITES = 1000
"""The least recently used is forgotten first."""
MOST_URLS = 10_000


class Sites:
    """The sites of all named hosts, and what came through us, for a report at the end."""

    def __init__(self, proxy: Proxy) -> None:
        self.urls: set[str] = set()
        """The URLs at named hosts to which anything was sent, without queries."""
        self.unread: dict[str, None] = {}
        """The other hosts that clients have contacted."""
        self._proxy = proxy
        self._services: OrderedDict[tuple[Origin, ProxyHop | None], Service] = OrderedDict()
        """By origin and the proxy behind us."""
        self._hosts = NamedHosts()
        self._known: tuple[str, ...] = ()
        self._others: Service | None = None

    @property
    def hosts(self) -> NamedHosts:
        """The hosts that are named now: the option may be edited."""
        if self._known != (named := self._proxy.config.hosts):
            self._known, self._hosts = named, NamedHosts(named)
        return self._hosts

    @property
    def others(self) -> Service:
        """Limits and seats for connections, until a named host is asked for."""
        if self._others is None or self._others.listener.config is not self._proxy.config:
            self._others = self._unnamed("http://others.invalid", b"")
        return self._others

    def note_unread(self, host: str) -> None:
        """Note that a client has contacted a host that is not named."""
        if len(self.unread) < MOST_URLS:
            self.unread[host] = None

    def service_of(self, origin: Origin, head: RequestHead, via: ProxyHop | None = None) -> Service:
        """Return the service for a request to a named host.

        Its endpoint is where the first message goes, so it gets its site only then: before, clients
        may log in, at other paths.
        """
        target = head.target
        if len(self.urls) < MOST_URLS:
            self.urls.add(origin.url + _plain(target))
        key = origin, via
        service = self._services.get(key)
        if not isinstance(service, Site):
            if _asks_for_events(head):
                return self._site_of(origin, via, target)
            if service is None or service.listener.config is not self._proxy.config:
                service = self._unnamed(origin.url, origin.authority.encode())
                service.before_judging = partial(self._judge_first, origin, via)
                self._keep(key, service)
                self._proxy.more_services.append(service)
        self._services.move_to_end(key)
        return service

    def _judge_first(
        self, origin: Origin, via: ProxyHop | None, exchange: Exchange, go_on: GoOn
    ) -> None:
        """Open the site for the first message; whatever is none belongs to a login."""
        limits, body = exchange.service.listener.config.limits, exchange.body
        if body and problem_in_body(head_of(exchange), body, is_endpoint=False, limits=limits):
            move_to(exchange, self._site_of(origin, via, exchange.head.target))
        else:
            go_on()

    def _unnamed(self, url: str, authority: bytes) -> Service:
        """Return a service for what is no message. It filters, but nobody is told of it."""
        proxy = self._proxy
        listener = open_listener(upstream=url, config=proxy.config, fetched=unlisted("/"))
        listener.is_forward = True
        return Service(listener, authority, proxy.effects, seats=proxy.crowd.seats)

    def _site_of(self, origin: Origin, via: ProxyHop | None, target: str) -> Site:
        known = self._services.get((origin, via))
        return known if isinstance(known, Site) else self._open(origin, via, target)

    def _open(self, origin: Origin, via: ProxyHop | None, target: str) -> Site:
        proxy = self._proxy
        listener = open_listener(upstream=origin.url, config=proxy.config, fetched=unlisted(target))
        listener.is_forward = True
        tls = proxy.around.make_tls() if origin.tls else None

        def find_target(config: Config) -> Target:
            found = target_for(config, origin.url, tls)
            return replace(found, address=origin.address, via=via, uses_login=False)

        site = self._add(origin.url + _plain(target), listener, find_target)
        self._keep((origin, via), site)
        return site

    def _add(self, plain: str, listener: Listener, find_target: Callable[[Config], Target]) -> Site:
        """Add a site. It is named by its URL, without the query, which may hold a secret."""
        name, number = plain, 1
        while name in self._proxy.sites:
            number += 1
            name = f"{plain} ({number})"
        site = self._proxy.add(name, listener, find_target)
        site.suspect = site.note_end_of_stream = nothing  # there are others
        return site

    def _keep(self, key: tuple[Origin, ProxyHop | None], service: Service) -> None:
        """Keep a service in the place of the one before; forget the one that nobody has used for
        the longest time."""
        self._forget(self._services.pop(key, None))
        while len(self._services) >= MOST_SITES:
            self._forget(self._services.popitem(last=False)[1])
        self._services[key] = service

    def _forget(self, service: Service | None) -> None:
        proxy = self._proxy
        if isinstance(service, Site):
            del proxy.sites[service.name], proxy.listeners[service.name]
            proxy.statistics.pop(service.name, None)
        elif service in proxy.more_services:
            proxy.more_services.remove(service)


class ForwardRoutes:
    """Where the requests of one connection go: the engine's ``Routes``."""

    def __init__(
        self,
        sites: Sites,
        tunnel: Address | None,
        *,
        open_tunnel: Callable[[Address, bytes], None] | None = None,
        via: Callable[[str], ProxyHop | None] = lambda _host: None,
        admit: Callable[[RequestHead], None] = lambda _head: None,
        name: str | None = None,
    ) -> None:
        """``tunnel`` is where the connection leads; None if each request names its server. Then
        ``open_tunnel`` gets where a tunnel is to lead, and what came ahead. ``via`` returns
        the proxy behind us that leads to a host. ``admit`` raises Fault for a client that may not
        use us. ``name`` is the server's name in TLS."""
        self._sites, self._tunnel, self._open_tunnel = sites, tunnel, open_tunnel
        self._admit, self._via, self._name = admit, via, name
        self.others = sites.others

    def open_tunnel(self, head: RequestHead, ahead: bytes) -> None:
        """Open the tunnel that a CONNECT asks for. Raises Fault."""
        try:
            to = parse_origin(f"http://{head.target}")
        except InvalidOption:
            to = None
        if to is None or self._open_tunnel is None or not _AUTHORITY.fullmatch(head.target):
            raise Fault("CONNECT to no server")
        self._admit(head)
        self._open_tunnel(Address(to.host, to.port, is_tls=False), ahead)

    def find(self, head: RequestHead) -> Route:
        """Return where a request goes. Raises Fault if it does not say so, or says two things."""
        return self._find_by_url(head) if self._tunnel is None else self._in_tunnel(head)

    def _find_by_url(self, head: RequestHead) -> Route:
        """The URL decides, and the server gets its host, whatever Host says (RFC 9112, 3.2.2)."""
        self._admit(head)
        needs_tunnel = head.target.lower().startswith("https:")
        host_in(head)  # which refuses a URL that is unclear
        if head.authority is None:
            raise Fault("a request to a proxy without the server's URL")
        if needs_tunnel:
            raise Fault("a URL that needs a tunnel")
        to = parse_origin(f"http://{head.authority}")
        at, via = Address(to.host, to.port, is_tls=False), self._via(to.host)
        service, hosts = None, self._sites.hosts
        if hosts.has(to.host, to.port) or hosts.is_at(to.host):
            service = self._sites.service_of(replace(to, host=to.host.lower()), head, via)
        else:
            self._sites.note_unread(to.host)
        if via is None:
            return Route(at, service)
        proxy = Address(via.origin.host, via.origin.port, via.origin.tls)
        return Route(at, service, proxy, via.login_field)

    def _in_tunnel(self, head: RequestHead) -> Route:
        """All that the client has said of the server must agree.

        Where a tunnel leads to an address, the name is that in TLS, or without TLS that of the
        request: anybody can send such a name, so another address is another origin.
        """
        at = self._tunnel
        assert at is not None
        hosts, said = self._sites.hosts, host_in(head)
        may_be_any = is_address(at.host) and not self._name
        host = self._name or (said if may_be_any else "") or at.host
        is_named = hosts.has(host, at.port) or hosts.has(at.host, at.port)
        if not is_named and not hosts.is_at(at.host):
            self._sites.note_unread(host)
            return Route(at, None)
        if said and not (are_same(said, host) or are_same(said, at.host)):
            raise Fault("a request to another host than that of its connection", _MISDIRECTED)
        address = at.host if is_address(at.host) and host != at.host else ""
        origin = Origin(host.lower(), at.port, at.is_tls, address)
        return Route(at, self._sites.service_of(origin, head, self._via(at.host)))


def host_in(head: RequestHead) -> str:
    """Return the host that a request names, without the port; empty if it names none.

    A target that is a URL becomes a path. Raises Fault for one that two readers could read
    differently, and for a Host like that.
    """
    said = [value.decode("latin-1") for value in values_of(head.fields, b"host")]
    if not head.target.startswith("/"):
        head.split_target()
        if "://" in head.target and not head.target.startswith("/"):
            raise Fault("a URL that cannot be read clearly")
        said = [head.authority] if head.authority is not None else said
    if len(said) > 1:
        raise Fault("two hosts")
    try:
        return parse_origin(f"http://{said[0]}").host if said and said[0] else ""
    except InvalidOption:
        raise Fault("a host that cannot be read") from None


def _asks_for_events(head: RequestHead) -> bool:
    accepts = text_of(head.fields, b"accept").lower()
    return head.method == "GET" and "event-stream" in accepts


def _plain(target: str) -> str:
    return target.partition("?")[0]
