"""Several servers behind one listener: which of them a request is for, and whether it runs.

    servers = Servers(whole, plans, ...)
    service = await servers.open(address)    # for all connections; begins to start every server
    await servers.settle()                   # the report
    await servers.change(plans)              # the config file has changed

Each server has a ``Proxy`` of its own, so that what fails in one concerns no other. All of them
start at the same time. A request for one that does not run lets it start once more, and waits; the
table of those that run is replaced whenever one of them starts or ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from mcp_tool_filter.cli.dead import DeadPatterns, PatternHolder
from mcp_tool_filter.core.conversation.memory import unlisted
from mcp_tool_filter.core.engine.service import GoOn, Service, nothing
from mcp_tool_filter.core.errors import LockError, StartError
from mcp_tool_filter.core.http.asked import Answered
from mcp_tool_filter.core.http.head import RequestNotes
from mcp_tool_filter.core.http.listener import open_listener
from mcp_tool_filter.core.http.urls import UpstreamNames
from mcp_tool_filter.core.messages.messages import UPSTREAM_LOST, ids_in
from mcp_tool_filter.core.policy.chain import refusal
from mcp_tool_filter.core.policy.config import Config, plain_path
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown
from mcp_tool_filter.core.policy.verdict import Reply, Why
from mcp_tool_filter.core.process.background import in_background, keep
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.sentences import warnings_about
from mcp_tool_filter.core.process.site import Site, Surroundings, TargetFinder, move_to
from mcp_tool_filter.core.process.start import key_of, refuse_start
from mcp_tool_filter.rooms.serve.mount import ENDPOINT, Mount, split_target

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.engine.wire import RequestHead
    from mcp_tool_filter.rooms.stdio.bridge import BridgedCommand

log = logging.getLogger(__name__)

_PATIENCE = 3.0
"""Seconds until the report comes although a server is still starting."""
_NO_SERVER = "Not found: there is no server at this path"


class MoreServices(Protocol):
    """What else is served at this port, beside the servers themselves."""

    @property
    def lines(self) -> Sequence[str]:
        """Lines for the report."""

    def begin(self) -> None:
        """Clients may come."""

    def close(self) -> None: ...


type OpenBridge = Callable[[Callable[[str], None]], AbstractAsyncContextManager[BridgedCommand]]
"""Serves a command over HTTP; its argument gets warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one server is to run."""

    name: str
    config: Config
    find_target: TargetFinder
    identity: object = field(repr=False)
    """What a running server cannot change: how it is reached or started."""
    names: UpstreamNames | None = None
    """Of its URL; None for a command."""
    open_bridge: OpenBridge | None = None
    """If it is a command."""
    problem: StartError | None = None
    """Why it cannot run as things are."""


class Servers:
    """All servers of the config file."""

    def __init__(
        self,
        whole: Proxy,
        plans: Iterable[Plan],
        around: Callable[[str], Surroundings],
        *,
        is_strict: bool,
        forget: Callable[[Site], None],
    ) -> None:
        """``around`` returns the surroundings of a server's proxy; ``forget`` closes connections
        to an upstream. If ``is_strict``, a server that does not run ends the process."""
        self.whole, self.around, self.forget = whole, around, forget
        self.is_strict = is_strict
        self.address = ""
        self._table = object()
        self._has_reported = False
        self._ends: set[asyncio.Task[None]] = set()
        self.at: dict[str, Running] = {}
        """The servers by name, in the file's order."""
        self.more: dict[str, Service] = {}
        """Other services of this port, by path."""
        self.beside: MoreServices | None = None
        self.on_change: Callable[[], None] = nothing
        """Called when a server has come or gone, or shows another list."""
        whole.runs = lambda: {name: one.site is not None for name, one in list(self.at.items())}
        whole.problems = lambda: {
            name: one.problem.one_line if one.problem else ""
            for name, one in list(self.at.items())
            if one.site is None
        }
        self.listener = open_listener(
            upstream="http://servers.invalid", config=whole.config, fetched=unlisted("/")
        )
        self._front = self.open_service("", _refuse)
        self._front.route = self.route
        self.at |= {plan.name: Running(plan, self) for plan in plans}

    def open_service(self, name: str, before_judging: Callable[[Exchange, GoOn], None]) -> Service:
        """Return a service without an upstream; the hook answers its requests."""
        whole = self.whole
        service = Service(self.listener, b"", whole.effects, seats=whole.crowd.seats, name=name)
        service.before_judging = before_judging
        service.shares_seats = bool(name)
        service.is_draining = whole.ending.is_leaving
        whole.more_services.append(service)
        return service

    async def open(self, address: str) -> Service:
        """Begin to start all servers; return the service for all connections."""
        self.address = address
        self.whole.observe(self.listener.policy)
        if self.beside is not None:
            self.beside.begin()
        for one in self.at.values():
            one.start()
        return self._front

    def route(self, head: RequestHead) -> Service:
        """Return the service of a request, and take the server's name from its target."""
        if (routed := head.notes.routed) is None or routed[0] is not self._table:
            if not head.target.startswith("/"):
                head.split_target()
            split = split_target(head.target)
            running = self.at.get(split[0]) if split else None
            if split is None or running is None:
                return self.more.get(head.target.partition("?")[0], self._front)
            service, target = running.service, split[1]
            if isinstance(service, Site):
                target = service.listener.mount.inward(target)
            routed = head.notes.routed = self._table, service, target, RequestNotes()
        _, service, head.target, head.notes = routed
        return service

    def is_of_other(self, running: Running, path: str) -> bool:
        """Tell whether a path of an upstream is the endpoint of another server than this one."""
        return any(one is not running and one.has(path) for one in self.at.values())

    def note_change(self) -> None:
        """Forget where requests go: a server has started or ended."""
        self._table = object()
        self.on_change()

    def tell_change(self) -> None:
        self.on_change()

    # The report

    async def settle(self) -> None:
        """Report, once all servers have started or failed, or after some seconds. Raises StartError
        if strict."""
        tasks = [one.start() for one in self.at.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=None if self.is_strict else _PATIENCE)
        self._has_reported = True
        if problem := self.problem():
            raise problem
        self.whole.around.report("\n".join([*self._lines(), *self._warnings()]))

    def tell(self, running: Running) -> None:
        """Tell of a server that has started or failed after the report."""
        if not self._has_reported:
            return
        if problem := self.problem():
            self.whole.ending.fail(str(problem))
        else:
            self.whole.around.report(
                "\n".join([running.line, *_grouped([running.warnings(self._dead())])])
            )

    def problem(self) -> StartError | None:
        """Return what a strict user does not accept."""
        for one in self.at.values():
            if one.problem and (self.is_strict or one.plan.config.strict):
                return _named(one.plan.name, one.problem)
            try:
                found = [one.snapshot] if one.snapshot else []
                beside = self.whole.config.editor
                refuse_start(one.plan.config, found, among=self._own_patterns(one), beside=beside)
            except StartError as error:
                return _named(one.plan.name, error)
        try:
            strict = replace(self.whole.config, strict=self.is_strict)
            refuse_start(strict, self._all_snapshots(), among=self.whole.config.patterns)
        except StartError as error:
            return error
        return None

    def _lines(self) -> list[str]:
        count = len(self.at)
        many = "1 server" if count == 1 else f"{count} servers"
        more = self.beside.lines if self.beside is not None else ()
        return [
            f"MCP tool filter: {self.address or 'stdin and stdout'} -> {many}",
            *(one.line for one in self.at.values() if not one.problem),
            *more,
        ]

    def _warnings(self) -> list[str]:
        down = [one.line for one in self.at.values() if one.problem]
        patterns = self._dead()
        said = _grouped([one.warnings(patterns) for one in self.at.values()])
        dead = [f"Warning: {one.says}" for one in patterns.shared]
        editor = self.whole.config.editor
        lost = editor.unmatched(self._all_snapshots(), None) if editor else ()
        dead += [f"Warning: the edit of {shown(one)} matches no tool of any server" for one in lost]
        return [*down, *said, *dead]

    def _dead(self) -> DeadPatterns:
        """Return the patterns that match nothing at any server that has them."""
        return DeadPatterns(
            PatternHolder(one.plan.config.patterns, one.snapshot) for one in self.at.values()
        )

    def _own_patterns(self, one: Running) -> list[Pattern]:
        """Return the patterns that are for this server only."""
        shared = set(map(key_of, self.whole.config.patterns))
        return [each for each in one.plan.config.patterns if key_of(each) not in shared]

    def _all_snapshots(self) -> list[Snapshot]:
        """Return the snapshots of all servers; none while one is unknown."""
        found = [one.snapshot for one in self.at.values()]
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else []

    # Changes

    async def change(self, plans: Sequence[Plan]) -> None:
        """Run these servers from now on. Those that are the same keep their sessions. One whose new
        lock is broken keeps the old one, and all its settings, if it may."""
        before, self.at = self.at, {}
        work: list[Awaitable[object]] = []
        for plan in plans:
            known = before.pop(plan.name, None)
            if known and plan.problem and known.can_stay(plan):
                self.at[plan.name] = known
                why = plan.problem.one_line
                self.whole.warn(f"Warning: SIGHUP: {plan.name} stays as it was: {why}")
            elif known and known.can_become(plan):
                self.at[plan.name] = known
                work.append(known.change(plan))
            else:
                work += [self._end(known, "the server has changed")] if known else []
                self.at[plan.name] = new = Running(plan, self)
                work.append(asyncio.wait([new.start()]))
        for one in before.values():
            self.whole.warn(f"{one.plan.name} is not in the config file any more: it has ended")
            work.append(self._end(one, "the server was removed"))
        self.note_change()
        await asyncio.gather(*work)

    def _end(self, one: Running, why: str) -> asyncio.Task[None]:
        return keep(self._ends, asyncio.get_running_loop().create_task(one.end(why)))

    def edit(self, plan: Plan) -> None:
        """Use another policy for a server, with the list that is known. Raises StartError."""
        if (running := self.at.get(plan.name)) is None or running.proxy is None:
            raise StartError(f"{plan.name} does not run", why="Its patterns are as in the file")
        if plan.problem:  # for example with its lock: such a plan has no patterns
            raise plan.problem
        running.proxy.adopt(plan.config)
        running.plan = plan

    async def close(self) -> None:
        """End all servers, because the process ends."""
        await asyncio.gather(*self._ends, *(one.close() for one in self.at.values()))


class Running:
    """One server: its proxy while it runs, or why it does not."""

    def __init__(self, plan: Plan, servers: Servers) -> None:
        self.plan = plan
        self.proxy: Proxy | None = None
        self.problem: StartError | None = None
        self._servers = servers
        self.site: Site | None = None
        self._starting: asyncio.Task[None] | None = None
        self._opened = AsyncExitStack()
        self._waiting = servers.open_service(plan.name, self._wait)
        self._has_ended = False
        self._turn = asyncio.Lock()

    @property
    def service(self) -> Service:
        """Its site, or a service whose requests wait until it runs."""
        return self.site or self._waiting

    @property
    def snapshot(self) -> Snapshot | None:
        """Its tools, if they are known."""
        if self.site is None or not self.site.listener.fetched.is_listed:
            return None
        return self.site.listener.snapshot

    def start(self) -> asyncio.Task[None]:
        """Start it, unless it runs; all who ask meanwhile wait for the same attempt."""
        if self._starting is None or (self._starting.done() and self.site is None):
            self._starting = asyncio.get_running_loop().create_task(self._start())
        return self._starting

    async def _start(self) -> None:
        before = self.problem
        try:
            if self.plan.problem:
                raise self.plan.problem
            self.site = await self._open()
            self.problem = None
        except StartError as error:
            self.problem = error
        except Exception as error:
            log.exception("internal error; %s cannot start", self.plan.name)
            self.problem = StartError("internal error", why=repr(error))
        if self.site is None:
            await self._close()
        if self._has_ended:
            return
        self._servers.note_change()
        if self.problem is None or before is None or str(before) != str(self.problem):
            self._servers.tell(self)

    async def _open(self) -> Site:
        plan, servers = self.plan, self._servers
        around = servers.around(plan.name)
        if plan.open_bridge is None:
            self.proxy = proxy = Proxy(around, servers.whole)
        else:
            bridge = await self._opened.enter_async_context(plan.open_bridge(around.warn))
            self.proxy = proxy = Proxy(replace(around, fetch=bridge.fetch), servers.whole)
            bridge.attach_to(proxy)
        proxy.adopt(plan.config)
        proxy.begin()
        site = await proxy.open(
            plan.name,
            plan.find_target,
            address=servers.address,
            place_of=partial(Mount, f"/{plan.name}"),
        )
        site.listener.logins.is_of_other = partial(servers.is_of_other, self)
        site.on_change = servers.tell_change
        site.shares_seats = len(servers.at) > 1
        return site

    def has(self, path: str) -> bool:
        """Tell whether its upstream could find its MCP endpoint at this path."""
        endpoints = {self.plan.config.endpoint, self.site and self.site.listener.fetched.endpoint}
        known = [plain_path(endpoint).casefold() for endpoint in endpoints if endpoint]
        path = path.casefold()
        return any(path == one or (one != "/" and path.startswith(f"{one}/")) for one in known)

    def _wait(self, exchange: Exchange, _go_on: GoOn) -> None:
        in_background(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        """Answer a request that came while the server did not run."""
        try:
            if self.site is None and not self._has_ended:
                await asyncio.wait([self.start()])
            if exchange.is_over:
                return
            if (site := self.site) is None:
                text = f"The server {self.plan.name} is not available"
                said = refusal(exchange.body, Why.LOST, UPSTREAM_LOST, text)
                _reply(exchange, said, 200 if ids_in(exchange.body) else 502)
                exchange.down.host.wake()
            else:
                exchange.head.target = site.listener.mount.inward(exchange.head.target)
                exchange.head.notes = RequestNotes()
                move_to(exchange, site)
        except Exception as error:
            exchange.fail(error)
            exchange.down.host.wake()

    # What people read

    @property
    def line(self) -> str:
        """Its line in the report."""
        name = self.plan.name
        if self.problem is not None:
            return f"Warning: {name} is not available: {self.problem.one_line}"
        if self.site is None:
            return f"  {name}: it is still starting"
        at = f"{self._servers.address}/{name}{ENDPOINT} -> {self.site.shown_target}"
        more, below = "; your login is used" if self.site.login else "", ""
        if self.proxy:
            for line in self.proxy.plugs.report(self.site):
                if line.startswith("Edited: "):  # there may be many
                    below += f"\n    {line}"
                else:
                    more += f"; {line[:1].lower()}{line[1:]}"
        if (snapshot := self.snapshot) is None:
            return f"  {name}: {at}: its tools are listed when a client logs in{more}{below}"
        count = len(snapshot.denied) + len(snapshot.allowed)
        many = "1 tool" if count == 1 else f"{count} tools"
        return f"  {name}: {at}: {many}, {len(snapshot.denied)} hidden{more}{below}"

    def warnings(self, dead: DeadPatterns) -> list[tuple[str, str]]:
        """Return its name with each warning, except about patterns that several servers have."""
        if self.site is None:
            return []
        found = [*warnings_about(self.plan.config)]
        if (snapshot := self.snapshot) is not None:
            found += dead.warnings_in(snapshot)
        return [(self.plan.name, one) for one in found]

    # Changes

    def can_stay(self, plan: Plan) -> bool:
        """Tell whether it may keep its settings because its new lock is broken: with the present
        file, it must lead to no other server, and no other server to it."""
        before = self.plan
        is_apart = before.config.only_mcp or not plan.config.only_mcp
        has_place = before.names == plan.names and is_apart
        return isinstance(plan.problem, LockError) and not before.problem and has_place

    def can_become(self, plan: Plan) -> bool:
        """Tell whether it can go on with another plan. Rules can only be added while it runs."""
        before = self.plan
        has_rules = plan.config.rules or not before.config.rules
        return bool(not plan.problem and before.identity == plan.identity and has_rules)

    def change(self, plan: Plan) -> Awaitable[None]:
        """Use a changed policy at once, even while it starts; return what takes a new list."""
        before, self.plan = self.plan, plan
        if self.proxy is not None:
            try:
                self.proxy.adopt(plan.config)
            except StartError as error:
                self.plan = before
                self.proxy.warn(f"Warning: the old policy stays: {error.one_line}")
        return self._renew(is_new=before.config != self.plan.config)

    async def _renew(self, *, is_new: bool) -> None:
        """Take a new list; or start, if it does not run."""
        async with self._turn:  # a second SIGHUP must wait for the first
            if self._has_ended:
                return
            if (site := self.site) is None or (proxy := self.proxy) is None:
                await asyncio.wait([self.start()])
                return
            said = await proxy.changes.take_and_describe(site)
            if is_new and (snapshot := self.snapshot):
                said += f"; by the new policy {len(snapshot.denied)} are hidden"
                said += f" and {len(snapshot.allowed)} exposed"
            proxy.warn(said)

    async def end(self, why: str) -> None:
        """End it: what its clients wait for is answered with an error."""
        self._has_ended = True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self.proxy is not None:
            self.proxy.end(why)
        await self.close()
        site, self.site = self.site, None
        if site is not None:
            self._servers.forget(site)
        self._servers.whole.more_services.remove(self._waiting)

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        await self._close()

    async def _close(self) -> None:
        """Close what a start has opened."""
        if self.proxy is not None:
            self.proxy.effects.close()
            await self.proxy.plugs.close()
        self.proxy = None
        await self._opened.aclose()


def _refuse(exchange: Exchange, _go_on: GoOn) -> None:
    _reply(exchange, refusal(b"", Why.FORBIDDEN, text=_NO_SERVER, detail="path"), 404)


def _reply(exchange: Exchange, said: Reply, status: int) -> None:
    exchange.service.listener.tell_refused(said, exchange)
    exchange.reply(Answered(status, said.text), with_cors=False)


def _named(name: str, error: StartError) -> StartError:
    if not error.what.startswith((f"{name}: ", "[servers.")):  # those of the file name theirs
        error.what = f"{name}: {error.what}"
    return error


def _grouped(warnings: Iterable[Iterable[tuple[str, str]]]) -> list[str]:
    """Return each warning once, with the names of its servers."""
    names: dict[str, list[str]] = {}
    for found in warnings:
        for name, text in found:
            names.setdefault(text.removeprefix("Warning: "), []).append(name)
    return [f"Warning: {', '.join(found)}: {text}" for text, found in names.items()]
