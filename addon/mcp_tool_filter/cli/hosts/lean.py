"""Run mitmproxy with only the addons that a filter in front of an MCP server needs.

Half of mitmdump's work for a request is searching about 35 addons (8 times), and a fifth of its
start is reading certificates that plain-text clients never need. If ``--set`` names an option of an
omitted addon, we load all of them.

We use these internals of mitmproxy: the chain and lookup of ``AddonManager``, the attribute
``certstore`` of ``TlsConfig``, and that both hooks of a TLS handshake use it.
"""

from __future__ import annotations

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

from mcp_tool_filter.adapters.mitmproxy.options import was_set
from mcp_tool_filter.cli.hosts.bare_mitmproxy import put_addons_together

_STORE_OPTIONS = frozenset({"certs", "confdir", "key_size", "cert_passphrase"})


class LeanMaster(Master):
    """A master with only the necessary addons."""

    def __init__(self, options: Options, addon: object) -> None:
        super().__init__(options)
        self._legacy_log_events.uninstall()  # no addon here uses its add_log
        manager: AddonManager = self.addons
        addons = [addon, *_lean_addons()]
        for one in addons:
            manager.register(one)
        if self.options.deferred:
            addons = self._with_all_others(addons)
        manager.chain[:] = addons  # only now: each new option is announced to the whole chain
        given = {name for name, _ in self.options.items() if was_set(self.options, name)}
        manager.trigger(ConfigureHook(given))

    def _with_all_others(self, addons: list[object]) -> list[object]:
        """Add mitmproxy's other addons, in mitmproxy's order, between the first and the last."""
        put_addons_together()
        from mitmproxy.addons import default_addons

        first, *known, last = addons
        chain = [first]
        for addon in default_addons():
            same = next((one for one in known if isinstance(one, type(addon))), None)
            chain.append(same or self.addons.register(addon))
        return [*chain, last]


def _lean_addons() -> list[object]:
    return [
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


class LazyTlsConfig(TlsConfig):
    """Reads the certificates when the first client uses TLS, or if the user has configured some."""

    name = "tlsconfig"
    certstore: CertStore | None = None  # type: ignore[assignment]  # theirs is never None

    def running(self) -> None:
        """Do not read the certificates twice."""

    def configure(self, updated: set[str]) -> None:
        if self.certstore is not None or ctx.options.certs:
            super().configure(updated)  # type: ignore[no-untyped-call]  # mitmproxy's, untyped
        else:
            super().configure(updated - _STORE_OPTIONS)  # type: ignore[no-untyped-call]  # as above

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
            super().configure({"confdir"})  # type: ignore[no-untyped-call]  # mitmproxy's, untyped


def make_options() -> Options:
    return Options()


def make_master(options: Options, addon: object) -> Master:
    """Return a master with our addon. Raises OptionsError for a value that is wrong."""
    return LeanMaster(options, addon)
