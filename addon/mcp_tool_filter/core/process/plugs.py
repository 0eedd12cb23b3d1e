"""Where a room plugs in to the process: ``Plug`` has the hooks, ``Entry`` is a row of the table.

    ROOMS = (Entry("a.room.module:ItsPlug", ("an_option",)), …)

The core never names a room. A host hands the table to ``Surroundings``; a room is imported only if
the configuration asks for it, or if the host does. An option whose room is not installed stops the
start: a filter without the rules that its user has written would let their calls pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.policy.config import Config

if TYPE_CHECKING:
    from mcp_tool_filter.core.conversation.policy_in_force import Watch
    from mcp_tool_filter.core.process.proxy import Proxy
    from mcp_tool_filter.core.process.site import Site
    from mcp_tool_filter.core.upstream.target import Target


class Plug:
    """What one room adds to a process. A hook that the room does not need does nothing."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def adopt(self, config: Config) -> None:
        """Use another configuration. Raises StartError if it cannot; nothing may have changed."""

    def adopted(self, before: Config) -> None:
        """The process uses another configuration now; ``before`` is the old one."""

    def begin(self) -> None:
        """The process begins, in the event loop. Raises StartError."""

    async def serve(self) -> None:
        """Serve what has a port of its own. Raises StartError."""

    def announce(self) -> None:
        """Clients are served now."""

    def reach(self, target: Target) -> Target:
        """Return how to reach an upstream."""
        return target

    def observers(self, _name: str) -> Iterable[Watch]:
        """Return what observes the messages of the site with this name."""
        return ()

    def attach(self, site: Site) -> None:
        """A site was added: its links, observers and hooks can be set."""

    async def open(self, site: Site) -> None:
        """The upstream of a site has listed its tools. Raises StartError."""

    def report(self, _site: Site) -> Iterable[str]:
        """Return lines for the report about a site."""
        return ()

    def warnings(self, _site: Site) -> Iterable[str]:
        """Return warnings that follow the report about a site."""
        return ()

    def facts(self) -> Mapping[str, str | None]:
        """Return what other programs of this user may know about the process."""
        return {}

    def note(self, said: object) -> None:
        """Another room says something that may be worth a note, such as a rule's log entry."""

    def reload(self) -> None:
        """A SIGHUP has come: read files again; one that is broken changes nothing."""

    async def close(self) -> None:
        """The process ends."""


type Sink = Callable[[Any], None]
"""Gets an entry for each message that matters: the terminal, a page, a log."""


class Shape(Protocol):
    """What runs: sites behind a port, or a session over stdio."""

    @property
    def config(self) -> Config: ...

    @property
    def sinks(self) -> Sequence[Sink]: ...

    @property
    def shows_page(self) -> bool:
        """True if the host has a place for a page."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table of rooms."""

    plug: str = ""
    """Where its ``Plug`` is: ``module:class``; empty if it has none."""
    options: tuple[str, ...] = ()
    """The settings, by their names in ``Config``, that are nothing without this room."""
    flags: str = ""
    """What people call these settings."""
    is_useful: Callable[[Shape], bool] = lambda _shape: False
    """Tells whether it is used without such a setting; if it is missing then, nobody notices."""
    of_each_server: bool = False
    """True if each of several servers has its own."""
    over_stdio: str = ""
    """A function, ``module:name``, that plugs the room into a session over stdio."""
    settles: str = ""
    """A function, ``module:name``, that adds to a configuration what its files say, given the one
    in force. Raises StartError."""

    def is_needed(self, config: Config) -> bool:
        usual = _usual()
        return any(getattr(config, option) != getattr(usual, option) for option in self.options)


@cache
def _usual() -> Config:
    return Config()


class RoomMissing(StartError):
    def __init__(self, flags: str, module: str) -> None:
        what = f"{flags or 'This'} does not work in this installation"
        super().__init__(what, why=f"{module} is not installed")


def settled(rooms: Iterable[Entry], config: Config, known: Config | None = None) -> Config:
    """Return a configuration with what the files that it names say. Raises StartError.

    What a ``known`` configuration has read already from the same files is not read again.
    """
    for entry in rooms:
        if entry.settles and entry.is_needed(config):
            config = load(entry.settles, entry.flags)(config, known)
    return config


def load(what: str, flags: str = "") -> Any:
    """Return a room's class or function. Raises RoomMissing if the room is not installed."""
    module, _, name = what.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not module.startswith(error.name or "?"):  # a package that the room needs
            raise
        raise RoomMissing(flags, module) from None


class Plugs:
    """The plugs of a process; or of one server of several, beside those of the ``whole``."""

    def __init__(self, proxy: Proxy, rooms: Sequence[Entry], whole: Plugs | None = None) -> None:
        self._proxy = proxy
        self._whole = whole
        self._rooms = [room for room in rooms if whole is None or room.of_each_server]
        self._open: dict[str, Plug] = {}
        self._is_running = False

    def __iter__(self) -> Iterator[Plug]:
        """Yield the own plugs, in the order of the table."""
        return (self._open[room.plug] for room in self._rooms if room.plug in self._open)

    @property
    def _all(self) -> list[Plug]:
        return [*(self._whole or ()), *self]

    def find[Kind: Plug](self, kind: type[Kind]) -> Kind:
        """Return the plug of a room that the caller knows; open it if nobody has needed it yet."""
        for plug in self._all:
            if isinstance(plug, kind):
                return plug
        name = f"{kind.__module__}:{kind.__name__}"
        plug = self._open[name] = kind(self._proxy)
        if all(room.plug != name for room in self._rooms):
            self._rooms.append(Entry(name))
        return plug

    def settle(self, config: Config, known: Config) -> Config:
        return settled(self._rooms, config, known)

    def adopt(self, config: Config) -> None:
        """Let all rooms use a configuration, also those that only it asks for. Raises StartError;
        then nothing has changed."""
        new = self._wanted(config)
        for plug in (*self, *new.values()):
            plug.adopt(config)
        self._join(new)

    def adopted(self, before: Config) -> None:
        for plug in self:
            plug.adopted(before)

    def begin(self) -> None:
        """Begin. Raises StartError."""
        self._open |= self._wanted(self._proxy.config)
        self._is_running = True
        for plug in self:
            plug.begin()

    def _wanted(self, config: Config) -> dict[str, Plug]:
        """Return plugs for the rooms that are asked for and not open yet."""
        found: dict[str, Plug] = {}
        for entry in self._rooms:
            is_needed = entry.is_needed(config)
            if not entry.plug or entry.plug in self._open:
                continue
            if not (is_needed or entry.is_useful(self._proxy)):
                continue
            try:
                found[entry.plug] = load(entry.plug, entry.flags)(self._proxy)
            except RoomMissing:
                if is_needed:
                    raise
        return found

    def _join(self, new: Mapping[str, Plug]) -> None:
        """Add plugs; the sites that are open already get them, too."""
        self._open |= new
        for plug in new.values():
            for site in self._proxy.sites.values():
                plug.attach(site)
            if self._is_running:
                plug.begin()

    async def serve(self) -> None:
        for plug in self:
            await plug.serve()

    def announce(self) -> None:
        for plug in self:
            plug.announce()

    def reach(self, target: Target) -> Target:
        for plug in self._all:
            target = plug.reach(target)
        return target

    def observers(self, name: str) -> list[Watch]:
        return [one for plug in self._all for one in plug.observers(name)]

    def attach(self, site: Site) -> None:
        for plug in self._all:
            plug.attach(site)

    async def open(self, site: Site) -> None:
        for plug in self._all:
            await plug.open(site)

    def report(self, site: Site) -> list[str]:
        every = (line for plug in self._all for line in plug.report(site))
        return [*dict.fromkeys(every)]  # two plugs of a room say the same about a server

    def warnings(self, site: Site) -> list[str]:
        return [*dict.fromkeys(one for plug in self._all for one in plug.warnings(site))]

    def facts(self) -> dict[str, str | None]:
        return {name: fact for plug in self for name, fact in plug.facts().items()}

    def note(self, said: object) -> None:
        for plug in self._all:
            plug.note(said)

    def reload(self) -> None:
        for plug in self:
            plug.reload()

    async def close(self) -> None:
        for plug in self:
            await plug.close()
