"""The only kind of asker in a stdio session: its one client.

We never ask the upstream anything that the client has not asked, so the client finds no trace of
us. Until the client has listed all tools, the patterns judge names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mcp_tool_filter.conversation.kind import Kind
from mcp_tool_filter.conversation.kinds import Kinds
from mcp_tool_filter.conversation.session import Envelopes
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.protocol.tools import Listing

type OnListed = Callable[[Snapshot], None]
"""Called once, when the client has seen the complete list."""


class OnlyKind(Kind):
    """Learns its list from the answers to the client's requests."""

    __slots__ = ("_denied", "_envelopes", "_on_listed", "_revision")

    def __init__(self, kind: Kind, on_listed: OnListed) -> None:
        """Replace a kind about which nothing is known."""
        super().__init__(kind._lists, kind._config)
        self._on_listed = on_listed
        self._denied = self.snapshot.denied
        self._envelopes = Envelopes()
        self._revision = ""

    def agree_on(self, revision: str) -> None:
        """Note the upstream's revision: the form of its lists depends on it."""
        self._revision = revision
        self.envelope = self._envelopes.get(revision)

    def learn_envelope(self, page: Listing | None) -> None:
        self._envelopes.learn(self._revision, page)
        self.envelope = self._envelopes.get(self._revision)

    def _finish(self, pages: tuple[bytes, ...], whole: Snapshot) -> None:
        is_first = not self.is_listed
        super()._finish(pages, whole)
        if is_first and self._listed is not None:
            self._on_listed(self._listed.snapshot)

    def _follow_list(self) -> None:
        super()._follow_list()
        if self._listed is not None:
            # Denied by pattern, not by list: a tool that the list lacks may be shown elsewhere.
            self.snapshot = replace(self.snapshot, denied=self._denied)


class OnlyKinds(Kinds):
    """Every asker is the one client, whatever it declares."""

    def __init__(self, config: Config, on_listed: OnListed) -> None:
        super().__init__(config)
        self.start = self.only = OnlyKind(self.start, on_listed)

    def of(self, client: Client, capabilities: str | None = None) -> Kind:
        return self.only

    def note_change(self, client: Client) -> None:
        """Take the client's next list from the upstream, even with ``tools_list=cache``."""
        self.only.is_stale = self.only.is_listed
