"""A server behind us knows our connections, and no others."""

from __future__ import annotations

from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test.tflow import tclient_conn, tserver_conn

from mcp_tool_filter.adapters.mitmproxy.own_connections import OwnConnections


def connection(to: tuple[str, int] | None, own: tuple[str, int] | None) -> ServerConnectionHookData:
    server = tserver_conn()
    server.address, server.sockname = to, own
    return ServerConnectionHookData(server, tclient_conn())


def test_our_own_connections_are_recognised_while_they_are_open() -> None:
    ours = OwnConnections(("127.0.0.1", 3000))
    first, second = (connection(("127.0.0.1", 3000), ("127.0.0.1", port)) for port in (5, 6))
    ours.server_connected(first)
    ours.server_connected(second)
    assert ours.peers == {("127.0.0.1", 5), ("127.0.0.1", 6)}
    ours.server_disconnected(first)
    assert ours.peers == {("127.0.0.1", 6)}


def test_other_connections_are_not_taken_for_ours() -> None:
    ours = OwnConnections(("127.0.0.1", 3000))
    ours.server_connected(connection(("127.0.0.1", 3001), ("127.0.0.1", 5)))
    ours.server_connected(connection(None, ("127.0.0.1", 5)))
    ours.server_connected(connection(("127.0.0.1", 3000), None))
    assert ours.peers == set()
    ours.server_disconnected(connection(("127.0.0.1", 3000), ("127.0.0.1", 5)))


def test_ipv6_addresses_are_compared_by_host_and_port() -> None:
    ours = OwnConnections(("::1", 3000))
    data = connection(("::1", 3000), ("::1", 5))
    setattr(data.server, "sockname", ("::1", 5, 0, 0))  # noqa: B010 - as the system has it
    ours.server_connected(data)
    assert ours.peers == {("::1", 5)}
