"""The proxy in a process of its own, under each host: ``mitmdump -s`` and our launcher."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
        running = launched(*start, home=home)
        process = await running.__aenter__()
        allow(process, descriptors)
        try:
            await process.serving()
            yield process
        finally:
            await running.__aexit__(None, None, None)
        return
    sets = (f"deny={DENY}", "endpoint=/mcp", "ssl_insecure=true", *options)
    start = ["-s", SCRIPT, "--mode", f"reverse:{url}"]
    start += [part for option in sets for part in ("--set", option)]
    dumping = tool("mitmdump", *start, home=home)
    dump = await dumping.__aenter__()
    allow(dump, descriptors)
    try:
        await dump.listening()
        await dump.says("Saved: ")
        yield dump
    finally:
        await dumping.__aexit__(None, None, None)


def allow(it: RunningTool, descriptors: int | None) -> None:
    """Let a process that has just been started open no more descriptors than these."""
    if descriptors is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(it.process.pid, resource.RLIMIT_NOFILE, (descriptors, hard))
