"""mitmproxy's options: our own, which we declare and read, and mitmproxy's, which may not harm.
Its modes are options, too: what they say about an upstream is at the end.

We declare each option of ours as text, so that mitmproxy cannot fail to parse it and then lose the
addon (mitmproxy issue 8013); ``parse_config`` checks the text. We set those of mitmproxy's that we
need, and refuse those that would bypass the filter. An option that the user has set is never
changed, even if it has mitmproxy's default value.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitmproxy import ctx, optmanager
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.exceptions import OptionsError
from mitmproxy.proxy.mode_specs import (
    LocalMode,
    ProxyMode,
    RegularMode,
    ReverseMode,
    Socks5Mode,
    TransparentMode,
    UpstreamMode,
)

from mcp_tool_filter.cli.options import KEYS, Option, Texts, instead_of
from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.switching import NOTHING
from mcp_tool_filter.core.errors import EmptyList, InvalidOption, StartError, UnknownOption
from mcp_tool_filter.core.policy.config import LOOPBACK, Config, is_loopback
from mcp_tool_filter.core.policy.patterns import DENY_GLOB, EXCEPT
from mcp_tool_filter.core.sockets.connect import make_tls_context
from mcp_tool_filter.core.upstream.target import Target, target_for

if TYPE_CHECKING:
    from mitmproxy.addonmanager import Loader
    from mitmproxy.connection import Client
    from mitmproxy.options import Options


def declare_options(loader: Loader) -> None:
    """Declare our options to mitmproxy, also for its ``--options`` and its web page."""
    for key, option in KEYS.items():
        default = (option.text,) if isinstance(option.text, str) else option.text or ()
        loader.add_option(key, Sequence[str], default, option.help_in_mitmproxy)


class ConfigReader:
    """Checks our options, the same texts only once."""

    def __init__(self, texts: Mapping[str, Texts] | None = None, config: Config | None = None):
        """``config`` is the already checked meaning of the ``texts``, if any."""
        self._config = config
        self._texts = {key: option.text for key, option in KEYS.items()} | dict(texts or {})

    def read(self, options: Options) -> Config:
        """Return the configuration. Raises StartError, which quotes the wrong text."""
        given = {option.key: _read(options, option) for option in KEYS.values()}
        if self._config is None or given != self._texts:
            known = self._config.choice.allow_too if self._config else ()
            self._config = parse_config(given, allow_too=[one.text for one in known])
            self._texts = given
        return self._config


def unknown_option(deferred: Iterable[str]) -> StartError | None:
    """Return an error for an undeclared option, which mitmproxy would silently ignore."""
    for name in deferred:
        if why := instead_of(name):
            return StartError(f"There is no option {name} any more", why=why)
        close = get_close_matches(name, KEYS, n=1)
        why = f"Did you mean {close[0]}?" if close else "mitmdump --options lists all options"
        return UnknownOption(name, why=why)
    return None


def overruled_option(options: Options, argv: Sequence[str]) -> StartError | None:
    """Return an error for an option of ours that was typed but has no effect, or no value.

    mitmproxy silently prefers its file config.yaml to ``--set``; and it drops a ``--set deny``
    without a value if there is another one with a value.
    """
    typed: dict[str, list[str]] = {}
    for text in _sets_in(argv):
        name, equals, value = text.partition("=")
        if not value and name in KEYS and KEYS[name].protects:
            return InvalidOption(f"--set {name}", value, why="Name a file, or leave it out")
        if equals and name in KEYS:
            typed.setdefault(name, []).append(value)
        elif name in KEYS and KEYS[name].selects:
            return EmptyList(name, source=f"--set {name}")
    for name, values in typed.items():
        if list(getattr(options, name)) != values:
            why = f"config.yaml in {options.confdir} has another value, and mitmproxy prefers it"
            return InvalidOption(f"--set {name}", ", ".join(values), why=why)
    return None


def _sets_in(argv: Sequence[str]) -> Iterator[str]:
    for flag, text in pairwise([*argv, ""]):
        if flag == "--set":
            yield text
        elif flag.startswith("--set="):
            yield flag.removeprefix("--set=")


def _read(options: Options, option: Option) -> Texts:
    if option.selects and not was_set(options, option.key):
        return None
    values: Sequence[str] = getattr(options, option.key)
    if option.many:
        return tuple(values)
    if len(values) > 1:
        raise InvalidOption(option.key, ", ".join(values), why="It can be given only once")
    if not (values or option.value) and was_set(options, option.key):
        # ``--set read_only``: mitmproxy makes an empty list of it, which would mean false.
        why = f"Write {option.key}=true or {option.key}=false"
        raise InvalidOption(option.key, "", why=why)
    return values[0] if values else option.text


_YEAR = 365 * 24 * 60 * 60

_DANGERS = ("ignore_hosts", "allow_hosts", "tcp_hosts", "udp_hosts")
_IDLE: dict[str, Callable[[Any], bool]] = {
    # option: does the user expect something of this value?
    "stream_large_bodies": bool,
    "body_size_limit": bool,
    "store_streamed_bodies": lambda value: not value,
    "validate_inbound_headers": lambda value: not value,
    "websocket": lambda value: not value,
    "connection_strategy": lambda value: value == "eager",
}
"""Options that our own HTTP engine does not read."""


def problem_in_options(options: Options) -> InvalidOption | None:
    """Return the error for an option of mitmproxy that would let something pass unfiltered, or
    None.

    All others are harmless: what they change in requests and answers is judged again.
    """
    for name in _DANGERS:
        if name in options and (value := getattr(options, name)):
            why = "Connections that it selects would pass unfiltered. Leave it out."
            return InvalidOption(name, value, why=why)
    return None


def idle_options(options: Options, *, is_forward: bool = False) -> str:
    """Return a sentence about options without effect that the user has set, or an empty text."""
    names = [
        name
        for name, is_wanted in _IDLE.items()
        if name in options and was_set(options, name) and is_wanted(getattr(options, name))
        if not (is_forward and name == "connection_strategy")  # there, TLS follows it
    ]
    if not names:
        return ""
    are = "has" if len(names) == 1 else "have"
    return f"Warning: {', '.join(names)} {are} no effect: the tool filter reads HTTP itself"


def keep_quiet_streams_alive(options: Options) -> None:
    """Allow streams and slow calls to be silent for as long as both peers want.

    mitmproxy closes a connection after ten minutes without a byte. It also connects to the upstream
    before the client has sent anything: if the upstream is down, the client gets no answer. In
    modes that know where to connect, that is past the filter, so there the user has no choice.
    """
    ours: dict[str, object] = {"tcp_timeout": _YEAR, "connection_strategy": "lazy"}
    given = {name for name in ours if was_set(options, name)}
    if any(isinstance(ProxyMode.parse(text), _KNOWING_WHERE) for text in options.mode):
        given -= {"connection_strategy"}
    options.update(**{name: ours[name] for name in ours if name not in given})


def was_set(options: Options, name: str) -> bool:
    """Tell whether the user or the configuration file has set this option, even to its default."""
    return options._options[name].value is not optmanager.unset


def forget(options: Options, name: str) -> None:
    """Reset an option to "not set", without notifying any addon."""
    options._options[name].reset()


def edit_deny(deny: list[str], exceptions: list[str]) -> str:
    """Edit the options as mitmweb's own page does; return the reason for a refusal, or an empty
    text.

    The patterns replace globs, too: these would still hide what is to be shown.
    """
    options = ctx.options
    if not (deny or was_set(options, "deny") or was_set(options, DENY_GLOB)):
        deny = [NOTHING]  # an empty list is an error; what hides are hints, or allow
    before = {name: list(getattr(options, name)) for name in (DENY_GLOB, EXCEPT)}
    try:
        for name in before:
            forget(options, name)
        options.update(deny=deny, **({EXCEPT: exceptions} if exceptions else {}))
    except OptionsError as error:
        options.update(**{name: texts for name, texts in before.items() if texts})
        return str(error)
    return ""


def refuse_no_mode(options: Options) -> None:
    """Raise StartError if no mode was chosen.

    Without ``--mode reverse:URL`` mitmproxy would start a forward proxy that no client uses, and
    the user would believe that the upstream is filtered.
    """
    if not was_set(options, "mode"):
        why = (
            "--mode reverse:http://host:port filters one MCP server; --mode regular filters the"
            " servers that --set hosts=NAME names, for all clients that use the proxy"
        )
        raise StartError("There is no --mode", why=why)


class Loopback:
    """Listen on loopback, unless the user names another address.

    ``mitmdump -s`` binds its sockets to all addresses before it loads a script. So we refuse remote
    clients that connect meanwhile, and bind the sockets again.
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
        if isinstance(mode, LocalMode):  # it does not listen
            return False
        return self._is_wanted and mode.custom_listen_host is None

    def _is_right(self, server: Any) -> bool:
        bound = (address[0].partition("%")[0] for address in server.listen_addrs)
        return not self._holds_for(server.mode) or all(map(is_loopback, bound))


# Modes

_KNOWING_WHERE = (ReverseMode, LocalMode, TransparentMode, Socks5Mode)
FORWARD_MODES = (RegularMode, UpstreamMode, LocalMode, TransparentMode, Socks5Mode)
"""Modes in which all traffic of clients goes through us."""


def parse_modes(texts: Sequence[str]) -> list[ReverseMode]:
    """Return the reverse proxy modes. Raises InvalidOption for modes that cannot carry MCP."""
    modes = [ProxyMode.parse(text) for text in texts]
    for text, mode in zip(texts, modes, strict=True):
        is_ours = isinstance(mode, ReverseMode) and mode.scheme in ("http", "https")
        if not is_ours and not isinstance(mode, FORWARD_MODES):
            why = (
                "The tool filter sits in front of an MCP server: --mode reverse:http://host:port;"
                " or of a client: --mode regular, upstream:URL, or local:PROGRAM"
            )
            raise InvalidOption("--mode", text, why=why)
    return [mode for mode in modes if isinstance(mode, ReverseMode)]


def is_forward(texts: Sequence[str]) -> bool:
    """Tell whether one of the modes is a forward proxy."""
    return any(isinstance(ProxyMode.parse(text), FORWARD_MODES) for text in texts)


def target_of(mode: ReverseMode, config: Config, options: Options) -> Target:
    """Return how to reach the upstream of a reverse proxy."""
    host, port = mode.address
    certificate = options.client_certs
    if certificate and Path(certificate).expanduser().is_dir():  # mitmproxy also accepts a folder
        own = Path(certificate).expanduser() / f"{host}.pem"
        certificate = str(own) if own.exists() else None
    tls = tls_of(options, client_cert=certificate) if mode.scheme == "https" else None
    url = f"{mode.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return target_for(config, url, tls)


def tls_of(options: Options, *, client_cert: str | None = None) -> ssl.SSLContext:
    """Return the TLS settings towards servers."""
    return make_tls_context(
        insecure=options.ssl_insecure,
        trusted_ca=options.ssl_verify_upstream_trusted_ca,
        trusted_confdir=options.ssl_verify_upstream_trusted_confdir,
        client_cert=client_cert,
    )


def address_of(mode: ReverseMode, server: Proxyserver | None, options: Options) -> str:
    """Return the URL where clients reach us, or will once mitmproxy listens there.

    >>> from mitmproxy.options import Options
    >>> mode = ReverseMode.parse("reverse:http://localhost:3000@[::1]:9001")
    >>> address_of(mode, None, Options())
    'http://[::1]:9001'
    """
    host = mode.listen_host(options.listen_host).strip("[]")
    port = mode.listen_port(options.listen_port)
    for instance in server.servers if server else ():
        if instance.mode == mode and instance.listen_addrs:
            host, port, *_ = instance.listen_addrs[0]
    return f"http://{f'[{host}]' if ':' in host else host or 'localhost'}:{port}"
