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
    """Start the proxy before an upstream; ``options`` are mitmproxy's, such as ``a=b``."""
    given = [part for option in ("ssl_insecure=true", *options) for part in ("--set", option)]
    if host == "launcher":
        start = ["--upstream", f"{url}/mcp", "--deny", DENY, *given]
        with only(descriptors):
            running = launched(*start, home=home)
            process = await running.__aenter__()
        try:
            await process.serving()
            yield process
        finally:
            await running.__aexit__(None, None, None)
        return
    start = ["-s", SCRIPT, "--mode", f"reverse:{url}", *given]
    start += ["--set", f"deny={DENY}", "--set", "endpoint=/mcp"]
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
