"""The target of a fetch: what to fetch a tool list from, with which login, and its other names.

Names under which clients can reach the upstream, too, are looked up once, at the start: its
addresses, and if it runs on this machine, all names of this machine. Whatever takes too long is
left out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from mcp_tool_filter.core.http.urls import UpstreamNames, parse_origin, plain_hosts
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.sockets.client import Headers, HttpClient, Login, Room
from mcp_tool_filter.core.sockets.connect import addresses_of

if TYPE_CHECKING:
    from mcp_tool_filter.core.sockets.connect import ProxyHop
    from mcp_tool_filter.core.sockets.served import AnswerRequest


class KnownLogins(Protocol):
    """What a room knows about logins."""

    def find(self, target: Target) -> Login | None:
        """Return the stored login for a target. Raises StartError if logins cannot be read."""

    async def are_offered(self, target: Target, endpoint: str) -> bool:
        """Tell whether documents of the upstream say how to log in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to fetch a tool list from."""

    url: str
    """Scheme, host and port."""
    address: str = ""
    """Where it is, if not where its name leads."""
    endpoint: str | None
    """Path and query, if the user has configured them."""
    headers: tuple[tuple[str, str], ...]
    """Sent with every request."""
    connect_timeout: float
    """Seconds until the upstream has introduced itself."""
    list_timeout: float
    """Seconds for all pages of the tool list."""
    tls: ssl.SSLContext | None
    limit: int
    """Bytes of one message."""
    other_lists: tuple[str, ...] = ()
    """Methods besides tools/list whose answers the report wants."""
    uses_login: bool = False
    """Use a stored login for the upstream, if there is one."""
    logins: KnownLogins | None = None
    """Knows the stored logins."""
    answer: AnswerRequest | None = None
    """Answers requests in this process: the upstream is a command, and nothing is at the URL."""
    via: ProxyHop | None = None
    """The proxy behind us that leads to the upstream."""


def target_for(config: Config, url: str, tls: ssl.SSLContext | None) -> Target:
    """Return the target. All hosts must use this function, or the upstream would be asked twice."""
    return Target(
        url=url,
        endpoint=config.endpoint,
        headers=config.upstream_headers,
        connect_timeout=config.connection_timeout,
        list_timeout=config.tool_list_timeout,
        tls=tls,
        limit=config.limits.message,
        other_lists=config.catalog.lists if config.catalog else (),
        uses_login=config.uses_login,
    )


def login_to(target: Target) -> Login | None:
    """Return the stored login for the target, or None.

    The operator's own Authorization has priority. Raises StartError if logins cannot be read.
    """
    if target.logins is None or not target.uses_login or has_authorization(target):
        return None
    return target.logins.find(target)


def open_client(
    target: Target, login: Login | None, headers: Headers | None = None, *, room: Room | None = None
) -> HttpClient:
    """Return a client for requests to the target; with its own headers, unless others are given."""
    if headers is None:
        headers = [(name.encode(), value.encode()) for name, value in target.headers]
    return HttpClient(
        replace(parse_origin(target.url), address=target.address), headers=headers, tls=target.tls,
        login=login, room=room, answer=target.answer, via=target.via,
    )  # fmt: skip


def has_authorization(target: Target) -> bool:
    return any(name.lower() == "authorization" for name, _ in target.headers)


_PATIENCE = 2.0  # seconds
_HOSTS_FILE = Path("/etc/hosts")
_IPV4_ADDRESSES = Path("/proc/net/fib_trie")
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
# The names of the host machine in containers.
_OF_CONTAINERS = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
_OF_NOBODY = "192.0.2.1"  # RFC 5737


async def find_names(url: str) -> UpstreamNames:
    """Return all names of the upstream that we can find."""
    host = urlsplit(url).hostname or ""
    addresses = {*plain_hosts(host), *await _resolve(host)}
    is_here = UpstreamNames(url).is_local or any(map(is_own_address, addresses))
    if is_here:
        own = socket.gethostname()
        addresses.update(_own_addresses(), await _resolve(own))
        addresses.update((own, f"{own.partition('.')[0]}.local", *_OF_CONTAINERS))
    addresses.update(_names_of(addresses, is_here=is_here))
    plain = frozenset(one for address in addresses for one in plain_hosts(address))
    return UpstreamNames(url, plain, is_here)


def is_own_address(host: str) -> bool:
    """Tell whether an address belongs to this machine. (Only then can a socket be bound to it.)"""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return False
    return _can_bind(family, host) and not _can_bind(socket.AF_INET, _OF_NOBODY)


def _can_bind(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


async def _resolve(host: str) -> set[str]:
    try:
        async with asyncio.timeout(_PATIENCE):
            return set(await addresses_of(host))
    except (OSError, UnicodeError):  # includes TimeoutError
        return set()


def _own_addresses() -> Iterator[str]:
    """Yield the addresses of this machine's interfaces, from Linux's /proc."""
    for line, after in pairwise(_lines_of(_IPV4_ADDRESSES)):
        if after.split()[-2:] == ["host", "LOCAL"]:
            yield line.split()[-1]
    for line in _lines_of(_IPV6_ADDRESSES):
        yield str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))


def _names_of(addresses: Iterable[str], *, is_here: bool) -> Iterator[str]:
    """Yield the names of these addresses in the hosts file."""
    for line in _lines_of(_HOSTS_FILE):
        address, *names = line.partition("#")[0].split() or [""]
        if address in addresses or (is_here and is_own_address(address)):
            yield from names


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
