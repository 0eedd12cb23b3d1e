"""mitmproxy's own options: those we set otherwise, and those that would open a way round us.

What a user has set stays as it is, also when it is what mitmproxy would do anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mitmproxy import ctx, optmanager
from mitmproxy.proxy.mode_specs import LocalMode, ProxyMode

from mcp_tool_filter.errors import InvalidOption, StartError
from mcp_tool_filter.policy.allowed_hosts import is_loopback

if TYPE_CHECKING:
    from mitmproxy.connection import Client
    from mitmproxy.options import Options

LOOPBACK = "127.0.0.1"
_YEAR = 365 * 24 * 60 * 60

_BYPASSES = "Connections that it selects would pass unfiltered. Leave it out."
_DANGERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    # option: (does this value harm?, why)
    "stream_large_bodies": (
        lambda value: value is not None,
        "Large messages would pass before they are checked. Leave it out.",
    ),
    "validate_inbound_headers": (
        lambda value: not value,
        "Requests could be smuggled past the tool filter. Leave it on.",
    ),
    "websocket": (
        lambda value: not value,
        "WebSocket messages would pass unfiltered. Leave it on.",
    ),
    "modify_body": (bool, "Messages would change after they are checked. Leave it out."),
    "ignore_hosts": (bool, _BYPASSES),
    "allow_hosts": (bool, _BYPASSES),
    "tcp_hosts": (bool, _BYPASSES),
    "udp_hosts": (bool, _BYPASSES),
}


def refuse_dangerous_options(options: Options) -> InvalidOption | None:
    """Say which option of mitmproxy would let something pass unfiltered, and why.

    Not in the way: rawtcp (no layer of ours makes a tunnel), map_local, map_remote, modify_headers
    and server_replay, by which a user changes what the upstream is asked or answers; lists and
    answers are judged wherever they come from.
    """
    for name, (harms, why) in _DANGERS.items():
        if name in options and harms(value := getattr(options, name)):
            return InvalidOption(name, value, why=why)
    return None


def keep_quiet_streams_alive(options: Options, *, is_forward: bool = False) -> None:
    """Let streams and slow calls be silent for as long as their ends want.

    mitmproxy closes a connection after ten minutes without a byte. And it connects to the upstream
    before a client has said anything: were the upstream down, the client would get no answer.
    The client of a forward proxy gets one, and there the server may be the first to speak.
    """
    strategy = "eager" if is_forward else "lazy"
    _set_unless_set(options, tcp_timeout=_YEAR, connection_strategy=strategy)


def bound_messages(options: Options, most: int) -> None:
    """Let nobody make mitmproxy hold more of one body; our own limit comes well before."""
    _set_unless_set(options, body_size_limit=str(most))


def was_set(options: Options, name: str) -> bool:
    """Has a user, or the configuration file, set this option, if only to its default?"""
    return options._options[name].value is not optmanager.unset


def refuse_no_mode(options: Options) -> None:
    """Raise StartError unless somebody has chosen a mode.

    Whoever forgets ``--mode reverse:URL`` would get a forward proxy, which no client uses, and take
    their upstream for filtered.
    """
    if not was_set(options, "mode"):
        why = (
            "--mode reverse:http://host:port filters one MCP server; --mode regular filters all"
            " that clients reach through the proxy"
        )
        raise StartError("There is no --mode", why=why)


def _set_unless_set(options: Options, **values: object) -> None:
    ours = {name: value for name, value in values.items() if not was_set(options, name)}
    if ours:
        options.update(**ours)


class Loopback:
    """Listen on the loopback, unless a user names another address.

    ``mitmdump -s`` binds its sockets, to every address, before it loads a script. So there are two
    steps: a stranger who connects meanwhile is not let in, and the sockets are bound once more.
    """

    def __init__(self) -> None:
        self._is_wanted = False

    def load(self, options: Options) -> None:
        """Call this in the ``load`` hook."""
        self._is_wanted = not was_set(options, "listen_host")
        if self._is_wanted:
            options.update(listen_host=LOOPBACK)

    def client_connected(self, client: Client) -> None:
        """Call this in the hook of that name."""
        if self._holds_for(client.proxy_mode) and not is_loopback(
            client.peername[0].partition("%")[0]
        ):
            client.error = "the tool filter listens on the loopback only (see --listen-host)"

    async def rebind(self) -> None:
        """Call this before the first request is answered."""
        servers = ctx.master.addons.get("proxyserver").servers
        if all(map(self._is_right, servers)):
            return
        modes = [server.mode for server in servers]
        await servers.update([mode for mode in modes if not self._holds_for(mode)])
        await servers.update(modes)

    def _holds_for(self, mode: ProxyMode) -> bool:
        if isinstance(mode, LocalMode):  # it listens nowhere
            return False
        return self._is_wanted and mode.custom_listen_host is None

    def _is_right(self, server: Any) -> bool:
        bound = (address[0].partition("%")[0] for address in server.listen_addrs)
        return not self._holds_for(server.mode) or all(map(is_loopback, bound))
