"""Know which connections are ours, so that a server behind us can refuse all others."""

from __future__ import annotations

from mitmproxy.proxy.server_hooks import ServerConnectionHookData


class OwnConnections:
    """An addon; ``peers`` are the local addresses of our connections to one address."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.peers: set[tuple[str, int]] = set()

    def server_connected(self, data: ServerConnectionHookData) -> None:
        if own := self._own_end(data):
            self.peers.add(own)

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        if own := self._own_end(data):
            self.peers.discard(own)

    def _own_end(self, data: ServerConnectionHookData) -> tuple[str, int] | None:
        address, own = data.server.address, data.server.sockname
        if own is None or address is None or (address[0], address[1]) != self._address:
            return None
        return own[0], own[1]
