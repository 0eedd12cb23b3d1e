"""The masters that the launcher runs in mitmproxy: a lean one, and mitmweb's for ``--inspect``.

The lean one has only the addons that a filter in front of an MCP server needs. Half of mitmdump's
work for a request is searching about 35 addons (8 times), a fifth of its start is reading
certificates that plain-text clients never need, and a third importing all addons, with flask,
ldap3 and more (``keep_addons_apart`` in ``cli/commands/in_mitmproxy`` prevents that). If ``--set``
names an option of an omitted addon, we load all of them.

We use these internals of mitmproxy: the chain and lookup of ``AddonManager``, the attribute
``certstore`` of ``TlsConfig``, and that both hooks of a TLS handshake use it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace

from mitmproxy import ctx
from mitmproxy.addonmanager import AddonManager
from mitmproxy.addons.block import Block
from mitmproxy.addons.core import Core
from mitmproxy.addons.disable_h2c import DisableH2C
from mitmproxy.addons.errorcheck import ErrorCheck
from mitmproxy.addons.next_layer import NextLayer
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.addons.save import Save
from mitmproxy.addons.tlsconfig import TlsConfig
from mitmproxy.addons.update_alt_svc import UpdateAltSvc
from mitmproxy.certs import CertStore
from mitmproxy.hooks import ConfigureHook
from mitmproxy.http import HTTPFlow
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy.layers.quic import QuicTlsData
from mitmproxy.tls import TlsData

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.mitmproxy.options import was_set

_STORE_OPTIONS = frozenset({"certs", "confdir", "key_size", "cert_passphrase"})


class LeanMaster(Master):
    """A master with only the necessary addons."""

    def __init__(self, options: Options, addon: object) -> None:
        super().__init__(options)
        self._legacy_log_events.uninstall()  # no addon here uses its add_log
        manager: AddonManager = self.addons
        addons = [
            addon,
            Core(),
            Block(),
            DisableH2C(),
            Proxyserver(),
            NextLayer(),
            Save(),
            LazyTlsConfig(),
            UpdateAltSvc(),
            ErrorCheck(),
        ]
        for one in addons:
            manager.register(one)
        if self.options.deferred:
            addons = self._with_all_others(addons)
        manager.chain[:] = addons  # only now: each new option is announced to the whole chain
        _tell_options(self)

    def _with_all_others(self, addons: list[object]) -> list[object]:
        """Add mitmproxy's other addons, in mitmproxy's order, between the first and the last."""
        _put_addons_together()
        from mitmproxy.addons import default_addons

        first, *known, last = addons
        chain = [first]
        for addon in default_addons():
            same = next((one for one in known if isinstance(one, type(addon))), None)
            chain.append(same or self.addons.register(addon))
        return [*chain, last]


class LazyTlsConfig(TlsConfig):
    """Reads the certificates when the first client uses TLS, or if the user has configured some."""

    name = "tlsconfig"
    # mitmproxy's own is None, too, until it has read the certificates, but is declared otherwise.
    certstore: CertStore | None = None  # type: ignore[assignment]

    def running(self) -> None:
        """Do not read the certificates twice."""

    def configure(self, updated: set[str]) -> None:
        if self.certstore is not None or ctx.options.certs:
            self._apply(updated)
        else:
            self._apply(updated - _STORE_OPTIONS)

    def tls_start_client(self, tls_start: TlsData) -> None:
        self._read_certificates()
        super().tls_start_client(tls_start)

    def quic_start_client(self, tls_start: QuicTlsData) -> None:
        self._read_certificates()
        super().quic_start_client(tls_start)

    def request(self, flow: HTTPFlow) -> None:
        if self.certstore is not None:
            super().request(flow)

    def _read_certificates(self) -> None:
        if self.certstore is None:
            self._apply({"confdir"})

    def _apply(self, updated: set[str]) -> None:
        super().configure(updated)  # type: ignore[no-untyped-call]  # mitmproxy's, untyped


def _put_addons_together() -> None:
    """Remove the empty package: imported addons stay, and the others can be imported."""
    package = sys.modules.get("mitmproxy.addons")
    if package is not None and package.__spec__ is None:
        del sys.modules["mitmproxy.addons"]


def _tell_options(master: Master) -> None:
    """Tell all addons what was set before they were there: mitmproxy tells each only the rest."""
    given = {name for name, _ in master.options.items() if was_set(master.options, name)}
    master.addons.trigger(ConfigureHook(given))


# mitmweb


def make_web_master(options: Options, addon: object, say: Callable[[str], None]) -> Master:
    """Return mitmweb's master, our addon before all others. Raises OptionsError."""
    from mitmproxy.tools.web.master import WebMaster

    master = WebMaster(options, with_termlog=False)
    if not was_set(options, "web_port"):
        usual = options.web_port
        near = (port for port in range(usual, usual + 100) if _is_free(port, "127.0.0.1"))
        options.update(web_port=next(near, usual))
    elif not _is_free(options.web_port, options.web_host):
        what = f"Cannot show mitmweb at {options.web_host}:{options.web_port}"
        raise StartError(what, why="Address already in use; leave web_port out to use a free port")
    manager = master.addons
    manager.chain.insert(0, manager.register(addon))
    _tell_options(master)
    # In case no browser opens.
    manager.add(SimpleNamespace(running=lambda: say(f"mitmweb: {master.web_url}")))
    return master


def _is_free(port: int, host: str) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True
