"""A filter in a process of its own: in mitmdump, or as the launcher runs it.

async with filtering("mitmdump", tmp_path, "deny=^rm$", respond=saying(ANSWER)) as it:
    await it.hear(post(body))  # it.port, it.upstream
assert "Warning" not in it.stderr
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.launched import launched
from tests.mcp_upstream import McpUpstream, Respond, mcp_upstream, tool
from tests.proxy import SCRIPT, RunningTool
from tests.proxy import tool as started
from tests.raw_client import raw_client

MITMDUMP, LAUNCHER = HOSTS = "mitmdump", "mcp-tool-filter"


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
    tools: Sequence[bytes] = (tool("read"), tool("rm")),
    respond: Respond | None = None,
    environment: dict[str, str] | None = None,
) -> AsyncIterator[Filtering]:
    """Run it with these ``name=value`` until Ctrl+C, in front of an upstream of its own."""
    async with AsyncExitStack() as stack:
        run = stack.enter_async_context
        upstream = await run(mcp_upstream(tools=tools, respond=respond))
        it: RunningTool
        if host == MITMDUMP:
            sets = [word for each in options for word in ("--set", each)]
            words = ["-s", SCRIPT, "--mode", f"reverse:{upstream.url}", *sets]
            it = await run(started(host, *words, home=home, environment=environment))
            port = await it.listening()
        else:
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in _pairs(options)]
            words = ["-u", f"{upstream.url}/mcp", *(one.removesuffix("=true") for one in flags)]
            it = launcher = await run(launched(*words, home=home, environment=environment))
            port = await launcher.serving()
        yield Filtering(it, upstream, port)
        it.interrupt()
        assert await it.exit_code() == 0


def _pairs(options: Sequence[str]) -> list[list[str]]:
    return [each.split("=", 1) for each in options]
