"""Fetch the upstream's tools without mitmproxy, for commands that only look."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcp_tool_filter.adapters.fetch.target import Target
from mcp_tool_filter.adapters.fetch.upstream import fetch, fetch_from
from mcp_tool_filter.cli.settings import Settings, target_of
from mcp_tool_filter.cli.terminal import progress, say
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.observers.report import Introduction, introduce
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.protocol.tools import Definition


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTools:
    """The upstream's tools, and what the filter would do with them."""

    fetched: Fetched
    who: Introduction
    snapshot: Snapshot
    definitions: Sequence[Definition]
    """The definitions of all tools, in the upstream's order."""


async def ask(settings: Settings) -> KnownTools:
    """Fetch the tools and apply the patterns. Raises StartError."""
    target = target_of(settings)
    fetched = await (_fetch_from_command(settings, target) if settings.command else fetch(target))
    policy = PolicyInForce(config=settings.config(), fetched=fetched)
    who = introduce(target.url, fetched, settings.listens_at)
    return KnownTools(
        fetched=fetched,
        who=replace(who, listens_at="stdio") if settings.is_stdio else who,
        snapshot=policy.snapshot,
        definitions=[one for listing in policy.listings for one in listing.definitions],
    )


def ask_now(settings: Settings) -> KnownTools:
    """Do so in a new event loop. Raises StartError."""
    with progress(f"Asking {settings.origin or settings.shown_upstream} for its tools …"):
        return asyncio.run(ask(settings))


async def _fetch_from_command(settings: Settings, target: Target) -> Fetched:
    from mcp_tool_filter.adapters.stdio.child import Child
    from mcp_tool_filter.adapters.stdio.client import find

    child = Child(settings.command, env=settings.env, cwd=settings.cwd)
    return await fetch_from(target, lambda opened: find(child, opened, limit=target.limit, say=say))
