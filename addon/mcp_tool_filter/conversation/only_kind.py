"""The only kind of asker that a stdio session has: its one client.

Nothing is ever asked of the upstream that the client has not asked, so the client can find no trace
of us. Until it has listed all tools, names are judged by the patterns.
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
"""Told once, when the client has seen the whole list."""


class OnlyKind(Kind):
    """Learns its list from what the client asks."""

    __slots__ = ("_denied", "_envelopes", "_on_listed", "_revision")

    def __init__(self, kind: Kind, on_listed: OnListed) -> None:
        """Take the place of a kind of which nothing is known."""
        super().__init__(kind._lists, kind._config)
        self._on_listed = on_listed
        self._denied = self.snapshot.denied
        self._envelopes = Envelopes()
        self._revision = ""

    def agree_on(self, revision: str) -> None:
        """Note which revision the upstream speaks: the form of its lists depends on it."""
        self._revision = revision
        self.envelope = self._envelopes.get(revision)

    def learn_envelope(self, page: Listing | None) -> None:
        self._envelopes.learn(self._revision, page)
        self.envelope = self._envelopes.get(self._revision)

    def _finish(self, pages: tuple[bytes, ...], whole: Snapshot) -> None:
        is_first = not self.is_listed
        super()._finish(pages, whole)
        listed = self.snapshot
        # Denied by pattern: what the list lacks may still be shown elsewhere.
        self.snapshot = replace(listed, denied=self._denied)
        if is_first:
            self._on_listed(listed)


class OnlyKinds(Kinds):
    """Whoever asks is the one client, whatever it says of itself."""

    def __init__(self, config: Config, on_listed: OnListed) -> None:
        super().__init__(config)
        self.start = self.only = OnlyKind(self.start, on_listed)

    def of(self, client: Client, capabilities: str | None = None) -> Kind:
        return self.only

    def note_change(self, client: Client) -> None:
        """Let the client's next list come from the upstream, also with ``tools_list=cache``."""
        self.only.is_stale = self.only.is_listed
