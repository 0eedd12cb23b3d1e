"""The process: its sites, and what they share. Both hosts create one ``Proxy``.

    proxy = Proxy(Surroundings(warn=say, report=say, render=render_report, ...))
    proxy.adopt(config)              # at start, and whenever the options change
    proxy.begin()                    # in the event loop: what the rooms have, such as an audit log
    site = await proxy.open(name, find_target)     # fetches the upstream's tools
    proxy.check_patterns()           # once, when all sites are open
    proxy.ready.set()
    ...                              # connections use site
    await proxy.end()

Methods that raise StartError have changed nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce, Watch
from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.errors import InvalidOption
from mcp_tool_filter.core.http.listener import Listener, open_listener
from mcp_tool_filter.core.http.places import ALONE, PathMap
from mcp_tool_filter.core.policy.config import Config, refuse_to_open
from mcp_tool_filter.core.policy.effects import CannotList, FetchTools
from mcp_tool_filter.core.process.background import Effects
from mcp_tool_filter.core.process.ending import Ending
from mcp_tool_filter.core.process.limits import Crowd, Holder, MemoryBudget, keep_free_memory
from mcp_tool_filter.core.process.plugs import Plugs, Sink
from mcp_tool_filter.core.process.sentences import Introduction, introduce, warnings_about
from mcp_tool_filter.core.process.site import (
    ServedCommand,
    Site,
    Surroundings,
    TargetFinder,
    UpstreamWatch,
    fetch_or_wait,
    tell_list_changed,
)
from mcp_tool_filter.core.process.start import refuse_start
from mcp_tool_filter.core.process.statistics import Statistics
from mcp_tool_filter.core.process.verdict_log import VerdictLog
from mcp_tool_filter.core.upstream.fetch import asked_by, fetch_as_client

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.service import Service
    from mcp_tool_filter.core.sockets.client import Room

log = logging.getLogger(__name__)

FIXED = {"audit_log": "audit", "metrics_port": "metrics", "dashboard": "dashboard", "otel": "otel"}
"""Options that can only be set at start, and their names in ``Config``."""


class Proxy:
    """All sites of the process; or, with a ``whole``, one server of several.

    Each server has its own settings, rules, effects and failures; the whole has what they share,
    and knows all their sites.
    """

    def __init__(self, around: Surroundings, whole: Proxy | None = None) -> None:
        self.around = around
        self._whole = whole
        self.runs: Callable[[], Mapping[str, bool]] | None = None
        """Tells which of several servers run; their sites follow their own settings."""
        self.problems: Callable[[], Mapping[str, str]] = dict
        """Tells why others do not: an empty text while one starts."""
        self.warn = around.warn
        self.config = Config()
        self.sites: dict[str, Site] = {}
        self.listeners: dict[str, Listener] = {}
        """The listeners by the names of their sites."""
        self.shown_besides: Callable[[], Mapping[str, Listener]] = dict
        """Returns what pages and programs see besides them; nobody is connected to it."""
        self.parts: dict[str, Proxy] = {}
        """The proxy of each server that runs, if there are several."""
        self.ready = asyncio.Event()
        """Set once clients are served, or the start has failed."""
        self.ending = Ending(self)
        self.effects = Effects()
        self.effects.fetch_tools = self._fetch_tools
        self.crowd: Crowd = whole.crowd if whole else Crowd()
        self.room: Room | None = None
        """The host's limit of connections to upstreams; our fetches for clients count, too."""
        self.budget: MemoryBudget = whole.budget if whole else MemoryBudget(self._holders)
        self.more_holders: Callable[[], Iterator[Holder]] = lambda: iter(())
        """The host's connections, which may hold unread bytes."""
        self.more_services: list[Service] = []
        """The host's services that are no sites; their exchanges end with the process, too."""
        self.log: VerdictLog = VerdictLog(around.warn)
        self.statistics: dict[str, Statistics] = whole.statistics if whole else {}
        """The counts by the names of their sites."""
        self.plugs: Plugs = Plugs(self, around.rooms, whole.plugs if whole else None)
        self.names_upstreams = False
        """True if there are several upstreams: what is told of a message names its own."""
        self.shows_page = False
        """True if the host has a place for a page."""
        self.page: Sink | None = None
        """Gets an entry for each message that matters, with arguments and results."""
        self.has_ended = False
        """True once we disconnect our clients ourselves."""
        self.changes = UpstreamWatch(self)
        self.command: ServedCommand | None = None
        """The upstream, if it is a command in this process."""
        self.addresses: dict[str, str] = {}
        """Where clients find the sites, by name."""
        self._is_running = False
        self._has_warned = False

    @property
    def whole(self) -> Proxy | None:
        """The proxy of all servers, if this is one of several."""
        return self._whole

    @property
    def sinks(self) -> Sequence[Sink]:
        return self.around.sinks

    # Settings

    def adopt(self, config: Config) -> None:
        """Use another configuration from now on. If it raises StartError, nothing has changed."""
        before = self.config
        config = self.plugs.settle(config, before)
        if self._is_running and self._whole is None:
            if not self.runs:  # each of several servers has its own policy
                refuse_to_open(before, config)
            for option, fixed in FIXED.items():
                if getattr(config, fixed) != getattr(before, fixed):
                    raise InvalidOption(option, "…", why="It can only be set at start")
        sites = [] if self.runs else list(self.sites.values())
        self.plugs.adopt(config)
        for site in sites:
            site.listener.policy.adopt(config)
        self.config = config
        if config.shadow is not before.shadow and self._is_running:
            said = (
                "Warning: nothing is enforced from now on" if config.shadow else "Enforcing again"
            )
            self.warn(f"{said}: shadow was switched {'on' if config.shadow else 'off'}")
        is_new = before.choice != config.choice
        self.plugs.adopted(before)
        if config.shadow is not before.shadow or (is_new and not config.shadow):
            for site in sites:
                tell_list_changed(site)
        if self._whole is None:
            self.crowd.adopt(config.max_clients)
            self.budget.limit = config.limits.unfinished

    def note_list_changed(self) -> None:
        """With a lock, look at the list again before the next call, although no client has a stream
        on which the upstream could say that it has changed."""
        for site in self.sites.values() if self.config.is_locked else ():
            site.listener.policy.kinds.note_change_for_all()

    # Start

    def begin(self, *, names_upstreams: bool = False, shows_page: bool = False) -> None:
        """Open what the rooms have for the whole process. Raises StartError.

        ``names_upstreams`` if there are several; ``shows_page`` if the host has a place for a page.
        """
        if self._whole is None:
            keep_free_memory()
            self.names_upstreams, self.shows_page = names_upstreams, shows_page
        self.plugs.begin()
        self._is_running = True
        if self._whole is None:
            self.crowd.begin()
            self.changes.listen()

    async def open(
        self,
        name: str,
        find_target: TargetFinder,
        *,
        address: str,
        keeps_host: bool = False,
        place_of: Callable[[str], PathMap] = lambda _endpoint: ALONE,
    ) -> Site:
        """Fetch an upstream's tools, open its site, and report. Raises StartError.

        ``address`` is ours, such as ``http://127.0.0.1:6273``. ``place_of`` gets the endpoint, and
        returns where it is below our address.
        """
        if (command := self.command) is not None:
            at_url = find_target
            find_target = lambda config: replace(at_url(config), answer=command.answer)  # noqa: E731
        target = self.plugs.reach(find_target(self.config))
        fetched = await fetch_or_wait(self.around.fetch, target)
        names = None if command else await self.around.find_names(target.url)
        listener = open_listener(
            upstream=target.url,
            config=self.config,  # now: it may have changed while we waited
            fetched=fetched,
            names=names,
            keeps_host=keeps_host,
        )
        listener.mount = place_of(fetched.endpoint)
        who = introduce(listener.upstream, fetched, address, is_shadow=self.config.shadow)
        if prefix := listener.mount.prefix:
            at = listener.mount.outward(fetched.endpoint.partition("?")[0])
            who = replace(who, listens_at=address + at)
        site = self.add(name, listener, find_target)
        (self._whole or self).addresses[name] = who.listens_at if prefix else address
        if command is not None:
            site.connect = command.connect(self.budget.received)
            listener.called = command.called
            who = replace(who, upstream=command.called)
        await self.plugs.open(site)
        self._report(site, who)
        return site

    def _report(self, site: Site, who: Introduction) -> None:
        listener = site.listener
        report = self.around.render(who, listener.snapshot, self.plugs.report(site))
        if site.login:
            report += "\n  Login: requests without their own credentials use yours"
        self.around.report(report)
        self.log.know(listener.snapshot.faults)
        self.log.warn_of(self.plugs.warnings(site))

    def add(self, name: str, listener: Listener, find_target: TargetFinder) -> Site:
        """Add a site whose listener is open; a forward proxy has one for each upstream."""
        listener.policy.links = self.around.links
        site = Site(name, listener, self.effects, self.crowd.seats, self._reaching(find_target))
        site.suspect = partial(self.changes.suspect, site)
        site.note_end_of_stream = partial(self.changes.note_end_of_stream, site)
        site.is_ending, site.is_draining = self.ending.has_failed, self.ending.is_leaving
        listener.policy.tell_hidden = self.log.tell_hidden
        self.plugs.attach(site)
        self.observe(listener.policy, name)
        self.sites[name], self.listeners[name] = site, listener
        if (whole := self._whole) is not None:
            whole.sites[name], whole.listeners[name] = site, listener
            whole.parts[name] = self
            site.is_draining = whole.ending.is_leaving
        return site

    def _reaching(self, find_target: TargetFinder) -> TargetFinder:
        return lambda config: self.plugs.reach(find_target(config))

    def observe(self, policy: PolicyInForce, name: str = "") -> None:
        """Count and log the messages of a site, or of what belongs to no site, and tell the
        rooms."""
        others = self.plugs.observers(name)
        if self.around.tell is not None:
            others.insert(0, Watch(partial(self.around.tell, name), of_plain_calls=None))
        counted = self.statistics.setdefault(name, Statistics())
        seen = [other.of_messages for other in others]
        policy.observe = counted.observer(time.time, self.log.tell_of, seen)
        policy.observe_plain = counted.observer_of_plain([other.of_plain_calls for other in others])

    def end(self, why: str) -> None:
        """End one server of several: what its clients wait for is answered with an error."""
        assert self._whole is not None
        for name, site in self.sites.items():
            site.is_ending = True
            for exchange in list(site.exchanges):
                exchange.lose(why)
                exchange.down.host.wake()
            if self._whole.sites.get(name) is site:
                for known in (self._whole.sites, self._whole.listeners, self._whole.parts):
                    del known[name]

    def check_patterns(self) -> None:
        """Warn about the patterns, even if no report is wanted. Raises StartError."""
        refuse_start(self.config, [site.listener.snapshot for site in self.sites.values()])
        if not self._has_warned:
            self._has_warned = True
            for warning in warnings_about(self.config):
                self.warn(warning)

    # While it runs

    async def _fetch_tools(self, effect: FetchTools) -> tuple[bytes, ...]:
        """Fetch the list that the client of a message would get."""
        for site in self.sites.values():
            if (asker := asked_by(effect, site.listener)) is not None:
                room = self._whole.room if self._whole else self.room
                return await fetch_as_client(site.target, asker, room)
        raise CannotList("the listener is gone")

    def name_of(self, site: Site) -> str:
        """Return the URL of an upstream for messages, if there are several upstreams."""
        return f" {site.shown}" if len(self.sites) > 1 else ""

    def state(self) -> dict[str, float | Mapping[str, float]]:
        """Return the current values for the metrics."""
        sites = list(self.sites.values())
        up: float | Mapping[str, float]
        up = not self.ending.has_failed and not any(site.is_lost for site in sites)
        if self.runs is not None:
            lost = {site.name for site in sites if site.is_lost}
            up = {name: runs and name not in lost for name, runs in self.runs().items()}
        return {
            "ready": self.ready.is_set() and bool(sites) and not self.ending.has_begun,
            "upstream_up": up,
            "sessions": sum(len(site.listener.sessions) for site in sites),
            "streams": len(self.exchanges),
        }

    @property
    def services(self) -> tuple[Service, ...]:
        return (*self.sites.values(), *self.more_services)

    @property
    def exchanges(self) -> list[Exchange]:
        """The open exchanges of all sites."""
        return [exchange for service in self.services for exchange in service.exchanges]

    def _holders(self) -> Iterator[Holder]:
        yield from self.exchanges
        yield from self.more_holders()

    # End

    async def close(self) -> None:
        """Write what the observers still have, and stop what runs in the background."""
        self.changes.close()
        self.effects.close()
        self.crowd.close()
        await self.plugs.close()
