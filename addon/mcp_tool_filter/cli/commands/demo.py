"""``mcp-tool-filter demo``: run an MCP server with the filter, and show what an agent sees."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import Event
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp_tool_filter.adapters.fetch.mcp_client import StreamableClient
from mcp_tool_filter.adapters.fetch.mcp_replies import Refused
from mcp_tool_filter.adapters.fetch.poster import Poster
from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.serve import bind
from mcp_tool_filter.cli.commands.demo_upstream import PATH, DemoUpstream, demo_upstream
from mcp_tool_filter.cli.commands.http import HttpFilter
from mcp_tool_filter.cli.flags import DEFAULT_PORT, Given
from mcp_tool_filter.cli.hosts.signals import on_signals
from mcp_tool_filter.cli.settings import Settings, settle
from mcp_tool_filter.cli.terminal import (
    Colour,
    columns,
    log_to_stderr,
    paint,
    say,
    shortened,
    width,
)
from mcp_tool_filter.http.origin import parse_origin
from mcp_tool_filter.observers.report import estimate_tokens

_DENY = r"^file_(?:write|move|delete)$,_database$,^shell_,_production$,^email_(?:send|delete)$"
_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the agent saw."""

    tools: list[dict[str, Any]]
    size: int
    """The size of the list in bytes."""
    calls: dict[str, str]
    """The result of calling each tool."""


def run(given: Given) -> int:
    """Run the demo; return the exit status."""
    stays = bool(given.pop("stay", None)) or "inspect" in given
    if not ("deny" in given or "allow" in given):
        given["deny"] = [_DENY]
    given.setdefault("port", [str(DEFAULT_PORT) if stays else "0"])
    log_to_stderr(0)
    return asyncio.run(_show(given, stays))


async def _show(given: dict[str, list[str]], stays: bool) -> int:
    async with demo_upstream() as upstream:
        settings = settle({**given, "upstream": [upstream.url]})
        settings.config()
        async with _running(settings) as url:
            before = await _look(upstream.url, [])
            denied, allowed = await _choose(url, before)
            after = await _look(url, [name for name in (denied, allowed) if name])
            print("\n".join(_lines(settings, before, after, upstream)))
            if stays:
                say(f"\nThe filter listens at {url}, in front of {upstream.url}; Ctrl+C ends both.")
                await _until_a_signal()
    return 0


@asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[str]:
    """Run the filter in this process, as the launcher does."""
    running = HttpFilter(settings, bind(settings.host, settings.port), report=lambda _report: None)
    await running.server.start()
    try:
        yield f"{running.server.address}{PATH}"
    finally:
        await running.server.close()


async def _until_a_signal() -> None:
    signalled = Event()
    on_signals(asyncio.get_running_loop(), signalled.set)
    await signalled.wait()


async def _look(url: str, calls: Sequence[str]) -> _Seen:
    """Connect as an agent's client would, list the tools, and call some."""
    origin = parse_origin(url)
    http = HttpClient(origin)
    client = StreamableClient(Poster(http, origin, PATH, limit=_LIMIT))
    reply = await client.initialize()
    await client.initialized(str(reply.result["protocolVersion"]))
    listed = await client.request("tools/list", {})
    seen = _Seen(
        json.loads(listed.raw)["result"]["tools"],
        len(listed.raw),
        {name: await _call(client, name) for name in calls},
    )
    await client.close()
    await http.close()
    return seen


async def _call(client: StreamableClient, name: str) -> str:
    try:
        reply = await client.request("tools/call", {"name": name, "arguments": {"path": "a.txt"}})
    except Refused as refused:
        return str(refused)
    return str(json.loads(reply.raw)["result"]["content"][0]["text"])


async def _choose(url: str, before: _Seen) -> tuple[str | None, str | None]:
    """Choose a hidden tool and one that is still exposed."""
    left = {tool["name"] for tool in (await _look(url, [])).tools}
    names = [tool["name"] for tool in before.tools]
    gone = [name for name in names if name not in left]
    return next(reversed(gone), None), next(iter(sorted(left, key=names.index)), None)


def _lines(
    settings: Settings, before: _Seen, after: _Seen, upstream: DemoUpstream
) -> Iterator[str]:
    left = {tool["name"] for tool in after.tools}
    patterns = [f"--deny '{text}'" for text in settings.deny]
    patterns += [f"--allow '{text}'" for text in settings.allow]
    yield f"An MCP server with {len(before.tools)} tools; in front of it: mcp-tool-filter"
    yield f"  {' '.join(patterns)}"
    yield ""
    yield from _tool_lines(before, left)
    yield ""
    yield paint(f"The agent saw {_measure(before)}; now it sees {_measure(after)}.", Colour.BOLD)
    saved = before.size - after.size
    tokens = estimate_tokens(saved)
    yield f"That saves {saved:,} bytes of context, about {tokens} tokens per tools/list."
    yield ""
    yield from _call_lines(after, upstream)


def _tool_lines(before: _Seen, left: set[str]) -> Iterator[str]:
    rows = [("BEFORE", "NOW", "")]
    for tool in before.tools:
        name = tool["name"]
        rows.append((name, name if name in left else "-", shortened(tool["description"], 60)))
    head, *lines = columns(rows, is_terminal=True)
    yield paint(head, Colour.DIM)
    for row, line in zip(rows[1:], lines, strict=True):
        cut = line[: width()] if sys.stdout.isatty() else line
        yield paint(cut, Colour.RED if row[1] == "-" else Colour.GREEN)


def _measure(seen: _Seen) -> str:
    return f"{len(seen.tools)} tools ({seen.size:,} bytes)"


def _call_lines(after: _Seen, upstream: DemoUpstream) -> Iterator[str]:
    for name, said in after.calls.items():
        reached = "reached" if name in upstream.calls else "did not reach"
        yield f"It calls {name}: {said}"
        yield paint(f"  (the call {reached} the server)", Colour.DIM)
