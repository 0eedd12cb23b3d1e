"""The proxy in a process of its own, under each host: ``mitmdump -s`` and our launcher."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.launched import RunningLauncher, launched
from tests.mcp_upstream import McpUpstream, Respond, mcp_upstream, tool
from tests.proxy import SCRIPT, RunningTool
from tests.proxy import tool as started
from tests.raw_upstream import RawRequest

DENY = "^wipe_"
TOOLS = [tool("read_file"), tool("wipe_disk")]
in_each_host = pytest.mark.parametrize("host", ["mitmdump", "launcher"])


@asynccontextmanager
async def hosted(
    host: str, url: str, home: Path, *options: str, deny: str = DENY, descriptors: int | None = None
) -> AsyncIterator[RunningTool]:
    """Start the proxy before an upstream; ``options`` are ours, such as ``max_clients=1``.

    It may open no more than so many ``descriptors``.
    """
    running: AbstractAsyncContextManager[RunningTool]
    if host == "launcher":
        named = [option.partition("=") for option in options]
        flags = [f"--{name.replace('_', '-', 1)}{sign}{value}" for name, sign, value in named]
        start = ["--upstream", f"{url}/mcp", "--deny", deny, "--insecure", *flags]
        running = launched(*start, home=home)
    else:
        sets = (f"deny={deny}", "endpoint=/mcp", "ssl_insecure=true", *options)
        start = [part for option in sets for part in ("--set", option)]
        running = started("mitmdump", "-s", SCRIPT, "--mode", f"reverse:{url}", *start, home=home)
    async with running as it:
        if descriptors is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.prlimit(it.process.pid, resource.RLIMIT_NOFILE, (descriptors, hard))
        await (it.serving() if isinstance(it, RunningLauncher) else it.listening())
        await it.says("Saved: ")
        yield it


@asynccontextmanager
async def between(
    host: str, home: Path, *options: str, tools: Sequence[bytes] = TOOLS,
    respond: Respond | None = None, descriptors: int | None = None,
    session: bytes | Callable[[], bytes] = b"",
    lists: Callable[[RawRequest, str], bytes] | None = None,
) -> AsyncIterator[tuple[McpUpstream, RunningTool]]:  # fmt: skip
    """Start an upstream, and the proxy before it."""
    async with (
        mcp_upstream(tools=tools, respond=respond, session=session, lists=lists) as upstream,
        hosted(host, upstream.url, home, *options, descriptors=descriptors) as it,
    ):
        yield upstream, it
