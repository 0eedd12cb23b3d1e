"""The proxy in a process of its own, under each host: ``mitmdump -s`` and our launcher."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.cli.launched import launched
from tests.proxy import SCRIPT, RunningTool, tool

DENY = "^wipe_"
in_each_host = pytest.mark.parametrize("host", ["mitmdump", "launcher"])


@asynccontextmanager
async def hosted(
    host: str, url: str, home: Path, *options: str, descriptors: int | None = None
) -> AsyncIterator[RunningTool]:
    """Start the proxy before an upstream; ``options`` are ours, such as ``max_clients=1``."""
    if host == "launcher":
        flags = [f"--{option.replace('_', '-', 1)}" for option in options]
        start = ["--upstream", f"{url}/mcp", "--deny", DENY, "--insecure", *flags]
        with only(descriptors):
            running = launched(*start, home=home)
            process = await running.__aenter__()
        try:
            await process.serving()
            yield process
        finally:
            await running.__aexit__(None, None, None)
        return
    sets = (f"deny={DENY}", "endpoint=/mcp", "ssl_insecure=true", *options)
    start = ["-s", SCRIPT, "--mode", f"reverse:{url}"]
    start += [part for option in sets for part in ("--set", option)]
    with only(descriptors):
        dumping = tool("mitmdump", *start, home=home)
        dump = await dumping.__aenter__()
    try:
        await dump.listening()
        await dump.says("Saved: ")
        yield dump
    finally:
        await dumping.__aexit__(None, None, None)


@contextmanager
def only(descriptors: int | None) -> Iterator[None]:
    """Let a process that is started meanwhile have no more descriptors than these."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors or soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
