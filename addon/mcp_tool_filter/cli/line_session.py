"""A session over stdio, as rooms see it: what they observe, what they add, and when it ends.

It is to a relay what ``Plug`` is to sites: the same table of rooms names what plugs in. Nothing
here imports asyncio, because a relay starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.plugs import Entry, RoomMissing, load

if TYPE_CHECKING:
    from mcp_tool_filter.cli.settings import Sources
    from mcp_tool_filter.core.conversation.policy_in_force import (
        Observer,
        PolicyInForce,
        Propagate,
    )
    from mcp_tool_filter.core.policy.situation import Link
    from mcp_tool_filter.core.policy.snapshot import Snapshot
    from mcp_tool_filter.core.process.background import EffectHost
    from mcp_tool_filter.core.process.plugs import Sink
    from mcp_tool_filter.core.sockets.client import Login


class RulesAwake(Protocol):
    """Rules whose file is watched, and whose effects are carried out."""

    @property
    def host(self) -> EffectHost: ...

    async def watch(self) -> None:
        """Reload the file whenever it changes, until cancelled."""

    async def close(self) -> None: ...


class LineRules(RulesAwake, Protocol):
    """The rules of a session."""

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of the rules, in order of evaluation."""

    def link_to_command(
        self, line: str, environment: Mapping[str, str], folder: str | None
    ) -> Link: ...

    def link_to_url(
        self, url: str, headers: Sequence[tuple[str, str]], login: Login | None
    ) -> Link: ...


type SendCopy = Callable[[bytes], object]


@dataclass(kw_only=True)
class LineSession:
    """One session, which is the whole process."""

    config: Config
    name: str
    """What the config file calls the server; empty if it is not from there."""
    config_file: str
    """The file from which it has this name; or empty."""
    called: Callable[[], str]
    """Returns what people call the upstream, without secrets."""
    warn: Callable[[str], None]
    state: Callable[[], Mapping[str, float | Mapping[str, float]]]
    """The current values for the metrics."""
    sinks: Sequence[Sink] = ()
    """They get an entry for each message that matters."""
    observers: list[Observer] = field(default_factory=list)
    propagate: Propagate | None = None
    """Set if requests are traced."""
    ends: ExitStack = field(default_factory=ExitStack)
    """What is closed at the end, the last first."""
    notes: list[Callable[[object], None]] = field(default_factory=list)
    """Called with what another room says, such as a rule's log entry."""
    facts: dict[str, Callable[[], str | None]] = field(default_factory=dict)
    """What other programs of this user may know about the session."""
    read_rules: Callable[[SendCopy], LineRules] | None = None
    """Reads the rules file, if there is one. Raises StartError."""
    server: Callable[[], str] = str
    """What the server calls itself."""
    revision: Callable[[], str] = str
    """The revision that both speak; empty if it is not known yet."""
    has_login: bool = False
    snapshot: Snapshot | None = None
    shows_page: bool = False
    on_ready: list[Callable[[], None]] = field(default_factory=list)
    """Called once its lines are judged."""
    policy: PolicyInForce | None = None
    """Set once its lines are judged."""
    edit_deny: Callable[[list[str], list[str]], str] = lambda _deny, _exceptions: "Not ready yet"
    """Sets the deny patterns and their exceptions; returns the problem with them."""
    adopt: Callable[[Config], None] = lambda _config: None
    """Uses another configuration from now on. Raises StartError."""
    sources: Sources | None = None
    """Where the settings are from, if a config file is among them."""
    tell_client: Callable[[list[bytes]], None] = lambda _lines: None
    """Sends the client lines of ours, and does not wait."""
    reports: list[Callable[[Snapshot], Iterable[str]]] = field(default_factory=list)
    """What rooms add to the report about its tools."""
    on_listed: list[Callable[[], None]] = field(default_factory=list)
    """Called when its tools are known."""

    def note(self, said: object) -> None:
        for each in self.notes:
            each(said)

    def know(self, snapshot: Snapshot) -> None:
        """Take note of the tools."""
        self.snapshot = snapshot
        for each in self.on_listed:
            each()


def plug_in(rooms: Iterable[Entry], session: LineSession) -> None:
    """Plug rooms into a session over stdio. Raises StartError."""
    for entry in rooms:
        is_needed = entry.is_needed(session.config)
        if entry.over_stdio and (is_needed or entry.is_useful(session)):
            try:
                load(entry.over_stdio, entry.flags)(session)
            except RoomMissing:
                if is_needed:
                    raise
