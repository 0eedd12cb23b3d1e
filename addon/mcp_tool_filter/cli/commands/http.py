"""Run the HTTP proxy on sockets. (What only mitmproxy can do is in ``in_mitmproxy``.)"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import sys
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from mcp_tool_filter.cli.flags import UsageError, with_flags
from mcp_tool_filter.cli.report import only_warnings, render_report
from mcp_tool_filter.cli.rooms import ROOMS, make_activity
from mcp_tool_filter.cli.settings import Settings, in_our_words, target_of
from mcp_tool_filter.cli.terminal import (
    cancel_on_signals,
    leads_nowhere,
    log_to_stderr,
    on_signals,
    progress,
    say,
    set_status,
    write,
)
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import InvalidOption, LostUpstream, StartError
from mcp_tool_filter.core.http.shown import may_hold_a_secret
from mcp_tool_filter.core.policy.config import is_loopback
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.site import Surroundings, TargetFinder
from mcp_tool_filter.core.sockets.connect import make_tls_context, pem_file, why_not_pem
from mcp_tool_filter.core.sockets.serve import Server, bind, opening
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.core.upstream.target import Target, login_to, target_for

if TYPE_CHECKING:
    from socket import socket

    from mcp_tool_filter.rooms.audit.activity import Activity
    from mcp_tool_filter.rooms.page.saving import Savings
    from mcp_tool_filter.rooms.stdio.bridge import BridgedCommand

log = logging.getLogger(__name__)

OF_COMMAND = "http://command.invalid"  # RFC 2606: nobody has this name
_MOMENT = 0.1  # seconds for which activity lines are collected

type Report = Callable[[str], None]
type Fetch = Callable[[Target], Awaitable[Fetched]]


def run(settings: Settings) -> int:
    """Filter until a signal comes or the upstream is lost; return the exit status."""
    settings.config()  # report wrong settings before anything starts
    refuse_bad_certificate(settings.cert)
    refuse_strangers(settings)
    needs_mitmproxy = settings.inspect or settings.record or settings.set
    if needs_mitmproxy:
        serving = import_module("mcp_tool_filter.rooms.mitmproxy.command").serve(settings)
    else:
        serving = _serve(settings, bind(settings.host, settings.port))
    is_json = settings.log_format == "json"
    log_to_stderr(settings.verbosity, is_watched=settings.inspect, as_json=is_json)
    return end_at_once(asyncio.run(serving))


def end_at_once(status: int) -> NoReturn:
    """Exit without Python's usual teardown, which waits for threads that still resolve a name; and
    mitmproxy's own threads may crash it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _serve(settings: Settings, doors: list[socket]) -> int:
    cancel_on_signals()
    try:
        if not settings.command:
            return await serve_until_the_end(HttpFilter(settings, doors))
        in_front = in_front_of_command(settings)
        async with open_bridge(settings, say) as command:
            running = HttpFilter(in_front, doors, command.fetch)
            command.attach_to(running.proxy)
            return await serve_until_the_end(running)
    except CancelledError:
        return 0


def open_bridge(
    settings: Settings, say: Callable[[str], None]
) -> AbstractAsyncContextManager[BridgedCommand]:
    """Serve a command over HTTP until the end of the block."""
    from mcp_tool_filter.rooms.stdio.bridge import bridged  # only for commands

    return bridged(
        settings.command,
        settings.env,
        settings.cwd,
        settings.config().limits,
        without=settings.without,
        most=settings.max_children,
        say=say,
        name=settings.name,
    )


def in_front_of_command(settings: Settings) -> Settings:
    """Return the settings of the proxy in front of a command that is served over HTTP."""
    from mcp_tool_filter.rooms.stdio.bridge import PATH

    texts = settings.texts | {"endpoint": PATH, "upstream_headers": ()}
    return replace(settings, origin=OF_COMMAND, command=(), env={}, texts=texts)


class Filter:
    """What ``serve_until_the_end`` runs: one upstream, or several. Create it in the event loop."""

    server: Server

    def __init__(self, settings: Settings, report: Report | None = None) -> None:
        """``report`` gets the report instead of the terminal."""
        self.settings = settings
        self.problem = ""
        """Why the process ends, if it ends with an error."""
        shows = report is None
        activity = activity_for(settings, asyncio.get_running_loop()) if shows else None
        self.around = Surroundings(
            rooms=ROOMS,
            config_file=settings.config_file,
            warn=say,
            sinks=[activity.show] if activity else [],
            on_end=partial(say_summary, activity),
            render=render_report,
            report=report or report_for(settings),
            leave=self._leave,
            make_tls=partial(tls_to_others, settings),
        )

    async def start(self) -> None:
        """Accept clients. Raises StartError."""
        await self.server.start()

    async def close(self) -> None:
        """End what runs besides the server."""

    def _leave(self, problem: str) -> None:
        self.problem = problem
        self.server.leave()


async def serve_until_the_end(running: Filter) -> int:
    try:
        await running.start()
        leave = at_second_call(running.server.leave, partial(end_at_once, 0))
        on_signals(asyncio.get_running_loop(), leave)
        await running.server.run()
    except (StartError, CancelledError) as error:  # a signal cancels the start
        await running.server.close()
        await running.close()
        if isinstance(error, CancelledError):
            raise
        write(with_flags(str(error)))
        return 1
    await running.close()
    if running.problem:
        if running.problem == str(LostUpstream()):
            write("To keep running when the upstream is lost: --keep-running")
        write(running.problem)
    return 1 if running.problem else 0


class HttpFilter(Filter):
    """The filter of one upstream."""

    def __init__(
        self,
        settings: Settings,
        doors: list[socket],
        ask: Fetch | None = None,
        report: Report | None = None,
    ) -> None:
        """``ask`` fetches the tools if the upstream is no URL."""
        super().__init__(settings, report)
        self.proxy = Proxy(
            replace(
                self.around,
                fetch=ask or fetch_with_progress,
                edit_deny=self._edit_deny,
                savings=partial(savings_for, settings),
            )
        )
        self.proxy.adopt(settings.config())
        tls = target_of(settings).tls
        find_target: TargetFinder = lambda config: target_for(config, settings.origin, tls)  # noqa: E731
        self.server = Server(
            self.proxy,
            doors,
            opening(self.proxy, find_target),
            partial(tls_to_clients, settings),
        )

    def _edit_deny(self, deny: list[str], exceptions: list[str]) -> str:
        """Use these patterns instead of all deny patterns and globs; return the problem with
        them."""
        try:
            self.proxy.adopt(self.settings.with_patterns(deny, exceptions, self.proxy.config))
        except StartError as error:
            log.warning("Not adopted, the old filter stays. %s", error)
            return str(error)
        return ""


def savings_for(settings: Settings) -> Savings | None:
    """Return what saves the patterns of the dashboard, if there is one and a config file."""
    if settings.sources is None:
        return None
    from mcp_tool_filter.rooms.page.saving import FileOfPatterns

    return FileOfPatterns(settings.sources).of(settings.name)


def at_second_call(
    leave: Callable[[], object], at_once: Callable[[], object]
) -> Callable[[], object]:
    """Return a signal handler: the first signal ends the process cleanly, a second one at once."""
    acts = iter([leave])
    return lambda: next(acts, at_once)()


async def fetch_with_progress(target: Target) -> Fetched:
    with progress(f"Asking {target.url} for its tools …"):
        return await fetch(target)


def tls_to_others(settings: Settings) -> ssl.SSLContext:
    """Return the TLS settings towards other servers than the upstream, such as one for logins."""
    with in_our_words():
        return make_tls_context(insecure=settings.insecure, trusted_ca=settings.ca)


def tls_to_clients(settings: Settings) -> ssl.SSLContext:
    """Return the TLS settings towards clients: with the user's certificate, or with one of
    mitmproxy's, which it makes for this computer."""
    if settings.cert:
        return server_context(_file_of(settings.cert))
    return _own_context(settings.host)


def _file_of(cert: str) -> str:
    return cert.partition("=")[2] or cert  # mitmproxy's form is DOMAIN=FILE


def _own_context(host: str) -> ssl.SSLContext:
    """Return the TLS settings of a listener at this address, if the user has named no certificate.

    mitmproxy makes one with its own authority, which the user may have installed, and keeps that in
    ``~/.mitmproxy``. It is imported only when the first client that uses TLS comes.
    """
    import tempfile
    from ipaddress import ip_address
    from pathlib import Path

    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from mitmproxy.certs import CertStore
    from mitmproxy.options import CONF_BASENAME, CONF_DIR, KEY_SIZE

    def name_of(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    store = CertStore.from_store(Path(CONF_DIR).expanduser(), CONF_BASENAME, KEY_SIZE)
    names = dict.fromkeys(("localhost", "127.0.0.1", "::1", host))
    entry = store.get_cert("localhost", [name_of(name) for name in names if name])
    key = entry.privatekey.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )
    file, path = tempfile.mkstemp(suffix=".pem")  # only we can read it
    try:
        with os.fdopen(file, "wb") as pem:
            pem.write(key + entry.cert.to_pem())
        return server_context(path)
    finally:
        os.unlink(path)


def report_for(settings: Settings) -> Report:
    return _say_warnings if settings.is_quiet else say


def _say_warnings(report: str) -> None:
    if warnings := only_warnings(report):
        say(warnings)


def activity_for(
    settings: Settings, loop: asyncio.AbstractEventLoop, *, until_end: bool = False
) -> Activity | None:
    """Return the display of messages, or None if it is not wanted. ``until_end``: it shows nothing
    before its summary, because somebody else has the terminal."""
    if settings.is_quiet or settings.log_format == "none" or leads_nowhere(sys.stderr):
        return None
    return make_activity(
        sys.stderr,
        _ignore if until_end else write,
        partial(loop.call_later, _MOMENT),
        as_json=settings.log_format == "json",
        set_status=_ignore if until_end else set_status,
    )


def _ignore(_text: str) -> None:
    """Show nothing."""


def say_summary(activity: Activity | None) -> None:
    if activity and (summary := activity.end()):
        write(summary)


def refuse_strangers(settings: Settings) -> None:
    """Refuse to listen for other machines with the user's own rights, unless the user wants that.

    (Only browsers are kept out by the check of Host: any other client can send what it likes.)
    """
    if is_loopback(settings.host) or settings.command or not (rights := _rights(settings)):
        return
    if not settings.allow_remote and not settings.many("allowed_hosts"):
        what = f"With --host {settings.host}, everybody on the network acts with {rights}"
        why = "Add --allow-remote if you want that, or --allowed-hosts NAME; or leave out --host"
        raise UsageError(what, why=why)
    say(f"Warning: everybody who reaches {settings.host} acts with {rights}")


def _rights(settings: Settings) -> str:
    """Return what of the user's own we would send with the requests of clients."""
    if settings.many("upstream_headers"):
        return "your --header"
    if settings.client_cert:
        return "your --client-cert"
    if may_hold_a_secret(settings.endpoint):
        return "the parameters of your --upstream"
    return "your login" if login_to(target_of(settings)) else ""


def refuse_bad_certificate(cert: str | None) -> None:
    """Raise our own error, because OpenSSL's names its functions."""
    if cert is not None:
        refuse_bad_pem("--cert", _file_of(cert))


def refuse_taken_port(settings: Settings) -> None:
    """Raise our own error for a taken port, before anything is sent to the upstream."""
    for door in bind(settings.host, settings.port):
        door.close()


class _NeedsPassword(Exception):
    pass


def _refuse_password() -> str:
    raise _NeedsPassword


def refuse_bad_pem(option: str, file: str) -> None:
    """Raise InvalidOption unless a file has a certificate and its key."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem_file(file), password=_refuse_password)
    except _NeedsPassword:
        return  # mitmproxy's option cert_passphrase may have it
    except OSError as error:
        raise InvalidOption(option, file, why=why_not_pem(error)) from None


def server_context(pem: str) -> ssl.SSLContext:
    """Return the TLS settings of a listener with this certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(os.path.expanduser(pem))
    context.set_alpn_protocols(["http/1.1"])
    return context
