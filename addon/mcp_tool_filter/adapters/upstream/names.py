"""Find out under which other names and addresses clients can reach the upstream.

We look once, at the start: its addresses, and if it runs on this machine, all names of this
machine. Whatever takes too long is left out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from mcp_tool_filter.http.urls import UpstreamNames, plain_hosts

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
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_PATIENCE):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # includes TimeoutError
        return set()
    return {str(address[0]) for *_, address in found}


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
