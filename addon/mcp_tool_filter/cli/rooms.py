"""The table of rooms: which plug belongs to which settings. A room is imported if needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from mcp_tool_filter.core.process.plugs import Entry, RoomMissing, load

if TYPE_CHECKING:
    from mcp_tool_filter.core.process.proxy import Proxy
    from mcp_tool_filter.core.upstream.target import KnownLogins


def _gets_entries(proxy: Proxy) -> bool:
    """Tell whether a terminal or a page shows each message."""
    return bool(proxy.around.sinks) or proxy.shows_page or proxy.config.dashboard is not None


def stored_logins() -> KnownLogins | None:
    """Return what knows the user's logins, if that room is installed."""
    try:
        found: KnownLogins = load(f"{_IN}.logins.stored:STORED")
    except RoomMissing:
        return None
    return found


_IN: Final = "mcp_tool_filter.rooms"
ROOMS: Final = (
    Entry(
        options=("of_catalog",),
        flags="--deny-prompts, --deny-resources or --deny-skills",
        settles=f"{_IN}.catalog.catalog:with_catalog",
    ),
    Entry(
        f"{_IN}.lock.locks:Locks",
        ("lock",),
        "--lock",
        of_each_server=True,
        settles=f"{_IN}.lock.lock_file:with_lock",
    ),
    Entry(
        f"{_IN}.page.page:LivePage",
        ("dashboard",),
        "--dashboard",
        is_useful=lambda proxy: proxy.shows_page,
    ),
    Entry(  # after the page, which gets its entries
        f"{_IN}.telemetry.watchers:Watchers",
        ("audit", "metrics", "otel"),
        "--audit-log, --metrics-port or --otel",
        is_useful=_gets_entries,
    ),
    Entry(
        f"{_IN}.rules.serving:Rules",
        ("rules",),
        "--rules",
        of_each_server=True,
    ),
    Entry(
        f"{_IN}.logins.serving:Logins",
        of_each_server=True,
        is_useful=lambda _proxy: True,
    ),
    Entry(
        f"{_IN}.status.announcing:Announcement",
        is_useful=lambda _proxy: bool(os.environ.get("XDG_RUNTIME_DIR")),
    ),
)
"""In the order in which they plug in, and end."""
