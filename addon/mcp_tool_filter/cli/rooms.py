"""The table of rooms: which plug belongs to which settings. A room is imported if needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcp_tool_filter.core.process.plugs import Entry, RoomMissing, Shape, load

if TYPE_CHECKING:
    from mcp_tool_filter.core.upstream.target import KnownLogins
    from mcp_tool_filter.rooms.audit.activity import Activity


def _gets_entries(shape: Shape) -> bool:
    """Tell whether a terminal or a page shows each message."""
    return bool(shape.sinks) or shape.shows_page or shape.config.dashboard is not None


def make_activity(*given: Any, **more: Any) -> Activity | None:
    """Return the display of messages, if that room is installed."""
    try:
        made: Activity = load(f"{_IN}.audit.activity:Activity")(*given, **more)
    except RoomMissing:
        return None
    return made


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
        f"{_IN}.edits.plug:Editing",
        ("edits", "edit_tables"),
        "--edits, or tables [tools.NAME]",
        of_each_server=True,
        over_stdio=f"{_IN}.edits.over_stdio:plug_in",
        settles=f"{_IN}.edits.plug:with_edits",
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
        over_stdio=f"{_IN}.telemetry.over_stdio:watch",
    ),
    Entry(
        f"{_IN}.rules.serving:Rules",
        ("rules",),
        "--rules",
        of_each_server=True,
        over_stdio=f"{_IN}.rules.over_stdio:plug_in",
    ),
    Entry(
        f"{_IN}.lane.plug:OpenLane",
        of_each_server=True,
        is_useful=lambda _proxy: True,
    ),
    Entry(
        f"{_IN}.logins.serving:Logins",
        of_each_server=True,
        is_useful=lambda _proxy: True,
    ),
    Entry(
        f"{_IN}.status.announcing:Announcement",
        is_useful=lambda _shape: True,
        over_stdio=f"{_IN}.status.over_stdio:announce_session",
    ),
)
"""In the order in which they plug in, and end."""
