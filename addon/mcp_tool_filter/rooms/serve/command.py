"""``mcp-tool-filter serve``: all servers of the config file behind one port, in one process."""

from __future__ import annotations

import asyncio
import os
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from mcp_tool_filter.cli.commands.http import (
    OF_COMMAND,
    Filter,
    end_at_once,
    in_front_of_command,
    open_bridge,
    refuse_bad_certificate,
    refuse_strangers,
    serve_until_the_end,
    tls_to_clients,
)
from mcp_tool_filter.cli.flags import COMMAND, Given, UsageError
from mcp_tool_filter.cli.options import OUR_FILE
from mcp_tool_filter.cli.settings import (
    AllSet,
    Settings,
    Sources,
    read_sources,
    target_of,
    warn_about_lonely,
)
from mcp_tool_filter.cli.switching import NOTHING
from mcp_tool_filter.cli.terminal import cancel_on_signals, log_to_stderr, say
from mcp_tool_filter.core.errors import LockError, StartError, UnsetVariable
from mcp_tool_filter.core.http.urls import UpstreamNames
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.proxy import FIXED, Proxy
from mcp_tool_filter.core.process.site import Surroundings
from mcp_tool_filter.core.sockets.serve import Server, bind
from mcp_tool_filter.core.upstream.target import target_for
from mcp_tool_filter.rooms.page.saving import FileOfPatterns
from mcp_tool_filter.rooms.serve.servers import Plan, Servers

_OF_ONE = ("upstream", "upstream-cmd", COMMAND, "header", "env", "cwd", "endpoint", "stdio")


def run(typed: Given) -> int:
    """Serve until a signal comes; return the exit status. Raises StartError."""
    is_stdio, profile = "stdio" in typed, typed.get("profile", [""])[-1]
    if profile and not is_stdio:
        raise UsageError("--profile needs --stdio", why="Over HTTP, it is at /NAME/mcp")
    if is_stdio and "port" in typed:
        raise UsageError("--stdio listens on no port: leave out --port or --stdio")
    typed = {key: one for key, one in typed.items() if key not in ("stdio", "profile")}
    sources = _read(typed)
    assert sources.file
    path = sources.file.how_to_merge().profile(profile).path if is_stdio else None
    settings = sources.for_all_servers()
    settings.config()  # report wrong settings before anything starts
    warn_about_lonely(typed, settings)
    refuse_bad_certificate(settings.cert)
    plans = _plans(sources)
    log_to_stderr(settings.verbosity, is_watched=False, as_json=settings.log_format == "json")
    return end_at_once(asyncio.run(_serve(sources, settings, plans, path)))


def _read(typed: Given) -> Sources:
    """Read the settings of all servers. Raises UsageError for what fits only one server."""
    sources = read_sources(typed, os.environ)
    if sources.file is None:
        why = f"Name it: mcp-tool-filter serve --config FILE; or write {OUR_FILE}"
        raise UsageError("There is no config file", why=why)
    for given, where in ((sources.surrounding, "the environment"), (sources.typed, "serve")):
        if wrong := next((name for name in _OF_ONE if name in given), None):
            why = f"Write it in the table of a server in {sources.file.path}"
            raise UsageError(f"{wrong} in {where} would be for all servers", why=why)
    if not sources.file.servers:
        why = '[servers.NAME] with command = ["PROGRAM", "ARGUMENT"] or url = "https://…"'
        raise UsageError(f"There is no server in {sources.file.path}", why=why)
    for name in ("inspect", "record", "set", "stdio"):
        if name in sources.file.top or name in sources.surrounding:
            raise UsageError(f"{name} does not work with serve", why="Leave it out")
    for name in ("upstream", "upstream-cmd", "endpoint"):
        if name in sources.file.top:
            path = sources.file.path
            say(f"Warning: {name} at the top of {path} is not served: only [servers.NAME] are")
    return sources


def _plans(sources: Sources, check: Callable[[Settings], None] = refuse_strangers) -> list[Plan]:
    """Return how to run each server. Raises StartError for a mistake in any of them."""
    assert sources.file
    plans = [_plan(sources, name, check) for name in sources.file.servers]
    return [
        _apart(plan) if any(_shares(plan, other) for other in plans) else plan for plan in plans
    ]


def _shares(one: Plan, other: Plan) -> bool:
    """Tell whether another server is at the same origin, however its address is written; two names
    in DNS are unknown, unless one of them is surely this machine."""
    first, second = one.names, other.names
    if one is other or first is None or second is None:
        return False
    ports = {first.port, second.port}
    return any(
        this.may_have(host, that.port) or (ports == {80, 443} and this.has(host))
        for this, that in ((first, second), (second, first))
        for host in that.hosts
    )


def _apart(plan: Plan) -> Plan:
    """Let only MCP at its own endpoint and logins pass to one of several servers of an origin: at
    the endpoint of another one, its policy would be bypassed."""
    config = replace(plan.config, only_mcp=True)
    return replace(plan, config=config, identity=(plan.identity, "apart"))


def _plan(sources: Sources, name: str, check: Callable[[Settings], None]) -> Plan:
    try:
        settings = sources.of_server(name)
        settings.config()
    except (UnsetVariable, LockError) as problem:
        return Plan(
            name=name,
            config=Config(strict=sources.is_strict),
            find_target=lambda config: target_for(config, OF_COMMAND, None),
            identity=None,
            names=_names_despite(sources, name),
            problem=problem,
        )
    check(settings)
    in_front = in_front_of_command(settings) if settings.command else settings
    config, tls = in_front.config(), target_of(in_front).tls
    # A lost server ends the process only if the user is strict.
    config = replace(config, fail_fast=config.fail_fast and config.strict)
    return Plan(
        name=name,
        config=config,
        find_target=lambda config: target_for(config, in_front.origin, tls),
        identity=_identity(settings, config),
        names=None if settings.command else UpstreamNames(settings.origin),
        open_bridge=partial(open_bridge, settings) if settings.command else None,
    )


def _names_despite(sources: Sources, name: str) -> UpstreamNames | None:
    """Return the names of a server that cannot run as things are: it may still run with its old
    settings, and others of its origin must not lead to it."""
    despite = replace(sources, ignored=("header", "lock"), environment=AllSet(sources.environment))
    with suppress(StartError):
        settings = despite.of_server(name)
        return None if settings.command else UpstreamNames(settings.origin)
    return None


def _identity(settings: Settings, config: Config) -> object:
    """Return what a running server cannot change."""
    if settings.command:
        has_rules = bool(config.rules)  # their state is for each command
        bridge = settings.cwd, settings.max_children, config.limits
        return settings.command, dict(settings.env), settings.without, bridge, has_rules
    tls = settings.insecure, settings.ca, settings.client_cert
    logins = config.uses_login, config.login_through, config.only_mcp
    return settings.origin, settings.endpoint, tls, logins, config.upstream_headers


async def _serve(
    sources: Sources, settings: Settings, plans: list[Plan], stdio_path: str | None
) -> int:
    cancel_on_signals()
    try:
        return await serve_until_the_end(_Filter(sources, settings, plans, stdio_path))
    except CancelledError:
        return 0


class _Filter(Filter):
    """The filter of all servers."""

    def __init__(
        self,
        sources: Sources,
        settings: Settings,
        plans: list[Plan],
        stdio_path: str | None,
    ) -> None:
        """With a ``stdio_path``, one client gets what is served there, over stdin and stdout."""
        super().__init__(settings)
        self._file, self._stdio_path = FileOfPatterns(sources), stdio_path
        doors = [] if stdio_path else bind(settings.host, settings.port)
        path = sources.file.path if sources.file else ""
        self.proxy = Proxy(replace(self.around, config_file=path, hang_up=self._read_again))
        self.proxy.adopt(settings.config())
        self._servers = Servers(
            self.proxy,
            plans,
            self._around,
            is_strict=sources.is_strict,
            forget=lambda site: self.server.forget(site),
        )
        self.server = Server(
            self.proxy,
            doors,
            self._servers.open,
            partial(tls_to_clients, settings),
        )

    async def start(self) -> None:
        """Accept clients, and report when the servers have started. Raises StartError."""
        assert self._file.sources.file
        merging = self._file.sources.file.how_to_merge()
        self._merged = merging.open(self._servers, lambda exchange: self.server.ask(exchange))
        self._servers.beside = self._merged
        await super().start()
        if self._stdio_path:
            self._merged.serve_lines(self._stdio_path, self.server.leave)
        await self._servers.settle()

    async def close(self) -> None:
        self._merged.close()
        await self._servers.close()

    def _around(self, name: str) -> Surroundings:
        """Return the surroundings of one server, whose warnings name it."""

        def warn(text: str) -> None:
            start = "Warning: " if text.startswith("Warning: ") else ""
            say(f"{start}{name}: {text.removeprefix(start)}")

        return replace(
            self.around,
            warn=warn,
            report=_ignore,
            leave=lambda problem: self.proxy.ending.fail(problem.replace(": ", f": {name}: ", 1)),
            edit_deny=partial(self._edit, name),
            savings=partial(self._file.of, name, is_one_of_several=True),
        )

    def _edit(self, name: str, deny: list[str], exceptions: list[str]) -> str:
        """Use these patterns for a server, until the file is read again; return the problem."""
        own = {"deny": [one for one in deny if one != NOTHING], "except": exceptions}
        try:
            plans = _plans(self._file.with_patterns(name, own), _ignore)
            self._servers.edit(next(plan for plan in plans if plan.name == name))
        except StartError as error:
            return str(error)
        return ""

    # The file has changed

    async def _read_again(self) -> None:
        try:
            sources = _read(self._file.sources.typed)
            assert sources.file
            merging = sources.file.how_to_merge()
            settings = sources.for_all_servers()
            here = self.settings.host  # the file's counts only after a new start
            plans = _plans(sources, lambda one: refuse_strangers(replace(one, host=here)))
            for plan in plans:
                if plan.config.rules:
                    _refuse_bad_rules(plan)
            before, config = self.proxy.config, settings.config()
            kept: Mapping[str, object] = {name: getattr(before, name) for name in FIXED.values()}
            # mypy knows the types of fields only where they are written by name.
            self.proxy.adopt(replace(config, **kept))  # type: ignore[arg-type]
        except StartError as error:
            say(f"Warning: SIGHUP: nothing has changed: {error.one_line}")
            return
        if any(getattr(before, name) != getattr(config, name) for name in FIXED.values()) or (
            (settings.host, settings.port) != (self.settings.host, self.settings.port)
        ):
            say("Warning: SIGHUP: where to listen and what to watch change only after a restart")
        self._file.sources = sources
        self._servers.listener.policy.adopt(self.proxy.config)
        self._merged.adopt(merging)
        await self._servers.change(plans)


def _refuse_bad_rules(plan: Plan) -> None:
    """Read a server's rules. Raises StartError, also if they cannot be used."""
    from mcp_tool_filter.rooms.rules.file import read_rules

    try:
        read_rules(plan.config.rules)
    except StartError as error:
        error.what = f"{plan.name}: {error.what}"
        raise


def _ignore(_given: object) -> None:
    """Report no server alone, as all have one report; check nothing if only patterns change."""
