"""A filter in a process of its own: in mitmdump, or as the launcher runs it.

async with filtering("mitmdump", tmp_path, "deny=^rm$", respond=saying(ANSWER)) as it:
    await it.hear(post(body))  # it.port, it.upstream
assert "Warning" not in it.stderr
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.launched import launched
from tests.mcp_upstream import McpUpstream, mcp_upstream, tool
from tests.proxy import SCRIPT, RunningTool
from tests.proxy import tool as started
from tests.raw_client import raw_client

MITMDUMP, LAUNCHER = HOSTS = "mitmdump", "mcp-tool-filter"


def mitmdump(
    *words: str, to: str = "http://127.0.0.1:1", home: Path, name: str = "mitmdump", **how: Any
) -> AbstractAsyncContextManager[RunningTool]:
    """Start it, or mitmweb or mitmproxy, with our script; ``words`` may be ``name=value``."""
    given = [f"--set={one}" if _is_option(one) else one for one in words]
    return started(name, "-s", SCRIPT, "--mode", f"reverse:{to}", *given, home=home, **how)


def _is_option(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.replace("_", "").isalpha()


@asynccontextmanager
async def hosted(
    host: str,
    to: str,
    home: Path,
    *words: str,
    port: int = 0,
    environment: dict[str, str] | None = None,
) -> AsyncIterator[RunningTool]:
    """Start it before this upstream, and wait until it serves; ``words`` may be ``name=value``.

    If it is to be quiet, it needs a port.
    """
    if host == MITMDUMP:
        at = f"{to}@{port}" if port else to
        async with mitmdump(*words, to=at, home=home, environment=environment) as it:
            it.port = port
            await it.listening()
            yield it
    else:
        flags = [_flag(one) if _is_option(one) else one for one in words]
        flags += ["--port", str(port)]
        running = launched("-u", f"{to}/mcp", *flags, home=home, environment=environment)
        async with running as launcher:
            launcher.port = port
            await (launcher.listening() if port else launcher.serving())
            yield launcher


def _flag(option: str) -> str:
    name, _, value = option.partition("=")
    flag = f"--{name.replace('_', '-')}"
    return flag if value == "true" else f"{flag}={value}"


@dataclass
class Filtering:
    it: RunningTool
    upstream: McpUpstream
    port: int

    @property
    def stderr(self) -> str:
        return self.it.stderr

    async def hear(self, *requests: bytes) -> None:
        """Hear them on one connection, one after the other."""
        async with raw_client(self.port) as client:
            for one in requests:
                await client.ask(one)


@asynccontextmanager
async def filtering(
    host: str,
    home: Path,
    *options: str,
    port: int = 0,
    environment: dict[str, str] | None = None,
    **how: Any,
) -> AsyncIterator[Filtering]:
    """Run it with these ``name=value`` until Ctrl+C, in front of an upstream of its own."""
    given = {"tools": (tool("read"), tool("rm")), **how}
    async with (
        mcp_upstream(**given) as upstream,
        hosted(host, upstream.url, home, *options, port=port, environment=environment) as it,
    ):
        yield Filtering(it, upstream, it.port)
        it.interrupt()
        assert await it.exit_code() == 0
