"""The kinds of asker over stdio: there is only one, the one client.

We ask the upstream nothing that the client has not asked, so the client finds no trace of us. Until
the client has listed all tools, the patterns judge names. Only if a hint decides, which needs the
definition, we ask for the list before a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mcp_tool_filter.core.conversation.declared import VARIANT
from mcp_tool_filter.core.conversation.kinds import Kind, Kinds
from mcp_tool_filter.core.conversation.lists import Frame
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import Deciding
from mcp_tool_filter.core.policy.situation import Client, RpcExchange
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.taking import UnlistedTools, by_name
from mcp_tool_filter.core.policy.tool_filter import Envelope

type OnListed = Callable[[Snapshot], None]
"""Called once, when the complete list is known."""


def _tell_nobody(_snapshot: Snapshot) -> None:
    """Only the list without a variant is reported."""


@dataclass(slots=True, eq=False)
class OnlyKind(Kind):
    """Learns its list from the answers to the client's requests.

    (Before Python 3.14, a dataclass with slots cannot call ``super()``.)
    """

    on_listed: OnListed = _tell_nobody
    _is_told: bool = False
    _envelopes: dict[str, Envelope] = field(default_factory=dict)
    """The first of each revision."""
    _revision: str = ""

    def agree_on(self, revision: str) -> None:
        """Note the upstream's revision: the form of its lists depends on it."""
        self._revision = revision
        self.envelope = self._envelopes.get(revision)

    def learn_envelope(self, frame: Frame) -> None:
        Kind.learn_envelope(self, frame)
        if self.envelope is not None:
            self._envelopes.setdefault(self._revision, self.envelope)
        self.envelope = self._envelopes.get(self._revision)

    def _finish(self, unlisted: UnlistedTools, whole: Snapshot) -> Deciding[Snapshot | None]:
        learned = yield from Kind._finish(self, unlisted, whole)
        self._tell_listed()
        return learned

    def take(self, pages: tuple[bytes, ...], *, keeps: bool = True) -> Deciding[Snapshot]:
        taken = yield from Kind.take(self, pages, keeps=keeps)
        self._tell_listed()
        return taken

    def _tell_listed(self) -> None:
        if self._listed is not None and not self._is_told:
            self._is_told = True
            self.on_listed(self._listed.snapshot)

    def _follow_list(self) -> None:
        Kind._follow_list(self)
        if self._listed is not None:
            # Denied by name, not by list: a tool that the list lacks may be shown elsewhere.
            self.snapshot = by_name(self.snapshot)


_MOST_VARIANTS = 100


class OnlyKinds(Kinds):
    """Every asker is the one client, whatever it declares; only each variant of the server that it
    asks for has a list of its own."""

    def __init__(self, config: Config, on_listed: OnListed) -> None:
        super().__init__(config)
        self.start = self.only = OnlyKind(self._lists, config, True, on_listed=on_listed)

    def of(self, client: Client, exchange: RpcExchange | None = None) -> Kind:
        capabilities = exchange.capabilities if exchange else None
        if capabilities is None or VARIANT not in capabilities:
            return self.only
        key = None, capabilities.partition(VARIANT)[2], "", None
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MOST_VARIANTS:
                self._kinds.pop(next(iter(self._kinds))).close()
            kind = self._kinds[key] = OnlyKind(self._lists, self._config, True)
        return kind

    def note_change(self, client: Client) -> None:
        """Take the client's next list from the upstream."""
        for kind in (self.only, *self._kinds.values()):
            kind.is_stale = kind.is_listed
