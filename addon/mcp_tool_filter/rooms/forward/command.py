"""``mcp-tool-filter run -- CLIENT``: start a client whose MCP traffic goes through the filter."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.commands.http import activity_for
from mcp_tool_filter.cli.flags import Given, UsageError
from mcp_tool_filter.cli.options import Texts
from mcp_tool_filter.cli.settings import Settings, gather, settle, warn_about_lonely
from mcp_tool_filter.cli.terminal import log_to_stderr, say
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.rooms.clients.files import Whereabouts
from mcp_tool_filter.rooms.forward.run import (
    OuterProxy,
    SeenTraffic,
    ServerOfClient,
    Way,
    client_of,
    command_for,
    environment_for,
    find_program,
    find_proxy,
    hosts_of,
    keep_last,
    named_server,
    not_seen,
    run_client,
    servers_of,
    why_not_seen,
    write_bundles,
)
from mcp_tool_filter.rooms.mitmproxy.command import (
    import_mitmproxy,
    leave,
    make_master,
    mitmproxy_options,
)

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.forward.interception import Interception
    from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter

_PATIENCE = 60.0  # seconds until we report which servers were not seen yet
_MOST_NAMED = 20
_OF_ONE_UPSTREAM = ("upstream", "upstream-cmd", "endpoint", "stdio", "host")


def run(typed: Given) -> int:
    """Run the client until it ends; return its exit status. Raises StartError."""
    if "command" not in typed:
        raise UsageError("There is no client to run", why="mcp-tool-filter run -- claude")
    # Here the one is a URL, and the other a host to filter.
    own = {name: values for name, values in typed.items() if name not in ("server", "host")}
    given = {
        name: values
        for name, values in gather(own, os.environ).items()
        if name not in _OF_ONE_UPSTREAM
    }
    settings = settle(given)
    settings.config()  # report wrong settings before anything starts
    warn_about_lonely(typed, settings)
    find_program(settings.command, {**os.environ, **settings.env})
    is_json = settings.log_format == "json"
    log_to_stderr(settings.verbosity, is_watched=settings.inspect, as_json=is_json)
    if settings.record:
        os.umask(0o077)  # a recording contains credentials
    with tempfile.TemporaryDirectory(prefix="mcp-tool-filter-") as folder:
        status = asyncio.run(_Session(settings, typed, Path(folder)).serve())
    from mcp_tool_filter.rooms.mitmproxy.connections import end_at_once

    end_at_once(status)
    return status


class _Session:
    """One run of a client, from start to end."""

    def __init__(self, settings: Settings, typed: Given, folder: Path) -> None:
        self._folder = folder
        self._client = typed.get("client", [None])[-1] or client_of(settings.command)
        here = Whereabouts.of_this_process()
        project = Path(settings.cwd) if settings.cwd else here.project
        here = Whereabouts(here.home, project, {**os.environ, **settings.env}, here.platform)
        listed, problems = servers_of(self._client, settings.command, here)
        self._servers = [*listed, *map(named_server, typed.get("server", []))]
        self._problems = problems
        hosts = [*settings.many("hosts"), *typed.get("host", []), *hosts_of(self._servers)]
        texts: dict[str, Texts] = {**settings.texts, "hosts": list(dict.fromkeys(hosts))}
        self._settings = replace(settings, texts=texts)
        self._settings.config()  # a wrong host is an error, too
        self._has_port = "port" in typed

    async def serve(self) -> int:
        await import_mitmproxy(self._settings)
        environment = {**os.environ, **self._settings.env}
        behind = find_proxy(environment)
        trusted_by_client, trusted_by_us = write_bundles(
            self._folder,
            ours=_own_authority(),
            own=self._settings.ca,
            environment=environment,
        )
        options = self._options(behind, trusted_by_us)
        loop = asyncio.get_running_loop()
        shares_terminal = sys.stderr.isatty()  # our output would disturb the client's screen
        activity = activity_for(self._settings, loop, until_end=shares_terminal)
        master = make_master(self._settings, fetch, self._report, activity, given=options)
        addon: ToolFilter = master.addons.get("toolfilter")
        proxying = loop.create_task(master.run())
        if not await addon.started():
            await proxying  # this ends the process, and prints why
            return 1
        if behind:
            _interception_of(addon).is_direct = behind.is_direct
        server = master.addons.get("proxyserver")
        proxy = f"http://127.0.0.1:{server.listen_addrs()[0][1]}"
        self._warn_of_commands()
        reminder = loop.create_task(self._remind(addon))
        try:
            return await run_client(
                command_for(self._settings.command),
                environment_for(environment, proxy, trusted_by_client),
                self._settings.cwd,
            )
        except CancelledError:
            return 1
        finally:
            reminder.cancel()
            await leave(master)
            await proxying
            self._say_result(_seen_by(addon))

    def _options(self, behind: OuterProxy | None, trusted: Path) -> dict[str, object]:
        """Return mitmproxy's options; ``behind`` is the user's own proxy."""
        login = {"upstream_auth": behind.login} if behind and behind.login else {}
        return {
            **mitmproxy_options(self._settings),
            "mode": [behind.mode if behind else "regular"],
            "listen_host": "127.0.0.1",
            "listen_port": self._settings.port if self._has_port else 0,
            "ssl_verify_upstream_trusted_ca": str(trusted),
            "connection_strategy": "eager",
            **login,
        }

    def _report(self, text: str) -> None:
        """Show the report only with -v, because the client has the terminal now; else only where
        the dashboard is."""
        if self._settings.verbosity > 0 or text.startswith("Dashboard:"):
            say(text)

    def _warn_of_commands(self) -> None:
        for problem in self._problems:
            say(f"Warning: {problem}")
        is_somewhere = any(one.way in (Way.FILTERED, Way.WATCHED) for one in self._servers)
        if not self._settings.many("hosts") and not is_somewhere:
            say(
                "Warning: nothing is filtered, because no host is named: name your servers with"
                " --host NAME or --server URL, or the client with --client"
            )
        for server in self._servers:
            if server.way is Way.COMMAND:
                client = self._client or "CLIENT"
                say(
                    f"Warning: {shown(server.name)} is not filtered: the client starts it as a"
                    f" command. Put the filter in front of it: mcp-tool-filter wrap {client}"
                    f" {shown(server.name)} --deny PATTERN"
                )
            elif server.way is Way.WATCHED:
                say(f"Warning: {shown(server.name)} is only watched{server.filtering.reason}")

    async def _remind(self, addon: ToolFilter) -> None:
        await asyncio.sleep(_PATIENCE)
        for one in not_seen(self._servers, seen := _seen_by(addon)):
            why = why_not_seen(one, seen)
            server = f"{shown(one.name)} ({shown_url(one.url)})"
            say(f"Warning: {server} was not seen by the filter yet: {why}")

    def _say_result(self, seen: SeenTraffic) -> None:
        if seen.unread and not self._settings.is_quiet:
            say(_passed(seen.unread))
        missing = not_seen(self._servers, seen)
        keep_last(self._client or "", self._servers, missing, seen)
        if missing:
            say(_loud(missing, seen))
        elif all(server.way is Way.COMMAND for server in self._servers) and not seen.urls:
            say(
                "WARNING: no MCP came through the filter in this session, and the servers of this"
                " client are not known: name them with --client, --server or --host"
            )


def _passed(hosts: Sequence[str]) -> str:
    first, others = hosts[:_MOST_NAMED], len(hosts) - _MOST_NAMED
    more = f" and {others} more" if others > 0 else ""
    return (
        f"Not filtered, because they are not named: {', '.join(map(shown, first))}{more}"
        " (--host NAME filters a host)"
    )


def _loud(missing: Sequence[ServerOfClient], seen: SeenTraffic) -> str:
    many = len(missing) > 1
    lines = [
        f"WARNING: {len(missing)} MCP server{'s' if many else ''} did not come through the filter"
        " in this session. Denied tools were not hidden there:"
    ]
    said = [
        f"  {shown(one.name)}  {shown_url(one.url)}  ({one.where}): {why_not_seen(one, seen)}"
        for one in missing
    ]
    return "\n".join([*lines, *said, "  For help: mcp-tool-filter help run"])


def _seen_by(addon: ToolFilter) -> SeenTraffic:
    found = _interception_of(addon)
    sites = found.sites
    return SeenTraffic(frozenset(sites.urls), frozenset(found.refused_tls), (*sites.unread,))


def _interception_of(addon: ToolFilter) -> Interception:
    """Return what the addon has made of our room at its start."""
    from mcp_tool_filter.rooms.forward.interception import Interception

    found = addon.interception
    assert isinstance(found, Interception)
    return found


def _own_authority() -> bytes:
    """Return mitmproxy's own CA certificate; create it if necessary."""
    from mitmproxy.certs import CertStore
    from mitmproxy.options import CONF_BASENAME, CONF_DIR, KEY_SIZE

    folder = Path(CONF_DIR).expanduser()
    try:
        store = CertStore.from_store(folder, CONF_BASENAME, KEY_SIZE)
    except (OSError, ValueError) as error:
        why = f"{error}. Repair or remove it; run then creates a new one"
        raise StartError(f"Cannot use mitmproxy's certificates in {folder}", why=why) from None
    return store.default_ca.to_pem()
