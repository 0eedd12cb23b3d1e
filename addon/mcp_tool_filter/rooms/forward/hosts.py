"""The hosts that the user names: only their traffic is read.

A host is named by its name, perhaps with a port:

>>> hosts = NamedHosts(["Mcp.Example", "localhost:3000"])
>>> hosts.has("mcp.example.", 443), hosts.has("localhost", 3000), hosts.has("localhost", 3001)
(True, True, False)

An address of a named host leads to the same server, so it is a second name for it. We know the
addresses that the name had at the start, and those where we have reached it. All loopback names and
addresses with one port are one server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import ip_address

from mcp_tool_filter.core.http.urls import plain_hosts
from mcp_tool_filter.core.policy.config import is_loopback

_PATIENCE = 2.0  # seconds for the names of all hosts
_MOST_PLACES = 10_000


class NamedHosts:
    """The hosts whose traffic is filtered."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Each text is a name or an address, perhaps with a port."""
        self.names: list[tuple[str, int | None]] = [split_port(text) for text in texts]
        self._ports: dict[str, set[int | None]] = {}
        for name, port in self.names:
            for plain in plain_hosts(name):
                self._ports.setdefault(plain, set()).add(port)
        self._addresses: set[str] = set()
        self._local: set[int | None] = {
            port for name, port in self.names if port and _is_local(plain_hosts(name))
        }

    def __bool__(self) -> bool:
        return bool(self.names)

    def has(self, host: str, port: int) -> bool:
        """Tell whether the user has named this host."""
        plain = plain_hosts(host)
        if port in self._local and _is_local(plain):
            return True
        found = (self._ports.get(one, ()) for one in plain)
        return any(None in ports or port in ports for ports in found)

    def is_at(self, address: str) -> bool:
        """Tell whether an address is one of a named host."""
        return not self._addresses.isdisjoint(plain_hosts(address))

    def note_place(self, address: str, port: int | None) -> None:
        """Note where a named host is. Many servers share the loopback addresses."""
        plain = plain_hosts(address)
        if _is_local(plain):
            self._local.add(port)
        elif len(self._addresses) < _MOST_PLACES:
            self._addresses |= plain

    async def look_up(self) -> None:
        """Look up the addresses of all names, as far as that is possible in a moment."""
        lookups = [self._look_up(*name) for name in self.names if not is_address(name[0])]
        if lookups:
            tasks = [asyncio.ensure_future(lookup) for lookup in lookups]
            _, late = await asyncio.wait(tasks, timeout=_PATIENCE)
            for one in late:
                one.cancel()

    async def _look_up(self, name: str, port: int | None) -> None:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                name, port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError):  # the proxy behind us may know it
            return
        for at in (port,) if port else (80, 443):
            for *_, place in found:
                self.note_place(str(place[0]), at)


def are_same(one: str, other: str) -> bool:
    """Tell whether two names mean one host.

    >>> are_same("A.example.", "a.example"), are_same("localhost", "127.0.0.1")
    (True, True)
    """
    plain, others = plain_hosts(one), plain_hosts(other)
    return not plain.isdisjoint(others) or (_is_local(plain) and _is_local(others))


def _is_local(plain: Iterable[str]) -> bool:
    return any(map(is_loopback, plain))


def split_port(text: str) -> tuple[str, int | None]:
    """Return the host and the port of a text, which may have none.

    >>> split_port("::1"), split_port("[::1]:80"), split_port("a.example")
    (('::1', None), ('::1', 80), ('a.example', None))
    """
    if text.count(":") > 1 and not text.startswith("["):
        return text, None
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), None
    return host.strip("[]"), int(port)


def is_address(host: str) -> bool:
    """Tell whether a host is written as an IP address."""
    try:
        ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True
