"""Serve one upstream on sockets: bind, fetch the tools, accept, and end when told to.

    doors = bind(host, port)             # at once: a taken port is found before anything is sent
    server = Server(proxy, doors, ...)
    status = await server.run(...)

Clients that connect before the tools are known wait in the sockets' queues.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence

from mcp_tool_filter.adapters.serving.limits import Holder, keep_free_memory, return_free_memory
from mcp_tool_filter.adapters.serving.proxy import Proxy
from mcp_tool_filter.adapters.serving.site import Site, TargetFinder
from mcp_tool_filter.adapters.sockets.connections import Clients
from mcp_tool_filter.errors import StartError

_BACKLOG = 1024
_GOODBYE = 1.0
"""Seconds for the last bytes to be sent when the process ends."""
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""An address family that this machine does not have."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Listen on all addresses of a host name, all with the same port. Raises StartError."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    doors: list[socket.socket] = []
    problem: OSError | None = None
    for family, *_, address in dict.fromkeys(found):
        try:
            chosen = doors[0].getsockname()[1] if doors else port
            doors.append(_listen(family, (address[0], chosen, *address[2:])))
        except OSError as error:
            problem = problem or error
            if error.errno not in _NOT_HERE:
                break
            problem = None if doors else problem
    if not doors or (problem and problem.errno not in _NOT_HERE):
        for door in doors:
            door.close()
        raise _cannot_listen(host, port, problem or OSError("no address")) from None
    return doors


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    # asyncio sends small pieces at once only if the protocol is named.
    door = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # there it means something else
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        door.setblocking(False)
        door.bind(address)
        door.listen(_BACKLOG)
    except OSError:
        door.close()
        raise
    return door


def _cannot_listen(host: str, port: int, error: OSError) -> StartError:
    reason = error.strerror or str(error)
    return StartError(
        f"Cannot listen on {host}:{port}", why=f"{reason}; --port 0 picks a free port"
    )


class Server:
    """Serves one upstream until it is told to stop."""

    def __init__(
        self,
        proxy: Proxy,
        doors: Sequence[socket.socket],
        find_target: TargetFinder,
        make_tls: Callable[[], ssl.SSLContext],
    ) -> None:
        """``make_tls`` returns the TLS settings towards clients; called when one uses TLS."""
        self._proxy, self._doors, self._find_target = proxy, doors, find_target
        self._make_tls = make_tls
        self._leaving = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._clients: Clients | None = None
        proxy.more_holders = self._holders

    @property
    def clients(self) -> Clients:
        """The clients, once they are served."""
        assert self._clients
        return self._clients

    @property
    def address(self) -> str:
        """Our address as a URL."""
        host, port, *_ = self._doors[0].getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def leave(self) -> None:
        """Stop serving."""
        self._leaving.set()

    async def start(self) -> None:
        """Fetch the tools and accept clients. Raises StartError."""
        proxy = self._proxy
        keep_free_memory()
        proxy.begin()
        await proxy.serve_dashboard()
        target = self._find_target(proxy.config)
        site = await proxy.open(target.url, self._find_target, address=self.address)
        proxy.check_patterns()
        await self._accept(site)
        proxy.ready.set()
        return_free_memory()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)

    async def run(self) -> None:
        """Serve until told to stop; let open calls finish; then disconnect all clients."""
        await self._leaving.wait()
        if not self._proxy.has_failed:
            self._close_doors()
            self.clients.hang_up({one.down.host for one in self._proxy.exchanges})
            await self._proxy.drain()
        await self.close()

    async def _accept(self, site: Site) -> None:
        proxy, loop = self._proxy, asyncio.get_running_loop()
        self._clients = Clients(site, proxy.budget, proxy.crowd.descriptors, self._make_tls)
        proxy.room = self._clients.pool
        for door in self._doors:
            server = await loop.create_server(self._clients.connect, sock=door, backlog=_BACKLOG)
            self._servers.append(server)

    async def close(self) -> None:
        """Accept no new clients, and close every connection when its last bytes are sent."""
        self._proxy.watchers.has_ended = True
        self._close_doors()
        clients, loop = self._clients, asyncio.get_running_loop()
        if clients is not None:
            clients.close()
            end = loop.time() + _GOODBYE
            while clients.all and loop.time() < end:
                await asyncio.sleep(0.005)
            for one in list(clients.all):
                one.abort()
            clients.pool.close()
        await self._proxy.close()

    def _close_doors(self) -> None:
        for server in self._servers:
            server.close()
        for door in self._doors:
            door.close()

    def _holders(self) -> Iterator[Holder]:
        if self._clients is not None:
            yield from list(self._clients.all)
