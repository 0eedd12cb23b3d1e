"""A tool filter in a real mitmproxy, between an upstream with two tools and a client."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.mcp_upstream import RESULT, McpUpstream, Respond, mcp_upstream, saying, tool, tool_list
from tests.proxy import RunningProxy, proxy
from tests.raw_client import MCP_HEADERS, Answer, RawClient, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk
from tests.served import served
from tests.waiting import PATIENT, patience

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter

READ, DELETE = tool("read_file"), tool("delete_file", ', "description":"gone \\u00e9"')
ENDPOINT = ["/mcp"]
ANSWERING = saying(RESULT)
INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
)


@dataclass
class Filtered:
    upstream: McpUpstream
    client: RawClient
    proxy: RunningProxy

    @property
    def port(self) -> int:
        return self.proxy.port

    @property
    def addon(self) -> Any:
        return self.proxy.master.addons.get("toolfilter")

    def set(self, **options: Any) -> None:
        """Edit options of mitmproxy."""
        self.proxy.master.options.update(**options)

    async def ask(self, body: bytes, headers: bytes = b"", path: str = "/mcp") -> Answer:
        return await self.client.ask(post(body, path=path, headers=MCP_HEADERS + headers))

    async def names(self) -> list[str]:
        """List the tools."""
        return [one["name"] for one in json.loads((await self.ask(LIST)).body)["result"]["tools"]]

    async def exposed(self) -> list[str]:
        """Wait until the tools are fetched; return those that the start has pinned."""
        async with patience():
            await self.addon.proxy.ready.wait()
        [listener] = self.addon.proxy.listeners.values()
        return list(listener.snapshot.allowed)


@asynccontextmanager
async def filtered(
    home: Path,
    *scripts: object,
    addon: ToolFilter | None = None,
    host: str = "plain",
    respond: Respond = ANSWERING,
    lists: Callable[[RawRequest, str], bytes] | None = None,
    tools: Sequence[bytes] = (READ, DELETE),
    session: bytes = b"",
    tls: ssl.SSLContext | None = None,
    to: Sequence[str] = (),
    on_sockets: bool = False,
    **options: Any,
) -> AsyncIterator[Filtered]:
    """Run a filter; the scripts come after ours, as with ``-s``. ``host`` as in ``tests.proxy``.

    ``to`` are modes, if mitmproxy is no reverse proxy.
    """
    usual = {"deny": ["^delete_"], "endpoint": None if to else ENDPOINT, **PATIENT}
    all_given = {**usual, **options}
    given = {name: value for name, value in all_given.items() if value is not None}
    upstreams = mcp_upstream(tools=tools, respond=respond, lists=lists, session=session, tls=tls)
    async with upstreams as upstream:
        if on_sockets:
            running: Any = served(to=upstream.url, home=home, **given)
        else:
            from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter  # tests/core has no rooms

            addons = (addon or ToolFilter(), *scripts)
            running = proxy(*addons, to=to or upstream.url, home=home, host=host, **given)
        async with running as it, raw_client(it.port) as client:
            yield Filtered(upstream, client, it)


def call(name: str, arguments: str = "{}", id: str = "1") -> bytes:
    params = f'{{"name":{json.dumps(name)},"arguments":{arguments}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}'.encode()


def not_found(name: str, id: str = "1") -> bytes:
    error = f'{{"code":-32601,"message":"Tool not found: {name}"}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


def stumble(*_args: object, **_given: object) -> None:
    raise ZeroDivisionError("a bug")


def lost(id: str) -> bytes:
    error = '{"code":-32000,"message":"Upstream connection lost"}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


class Hook:
    """A script behind the filter: one hook."""

    def __init__(self, hook: str, run: Callable[[Any], Any]) -> None:
        setattr(self, hook, run)


LIST = b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'


async def legacy_upstream(request: RawRequest, peer: Peer) -> None:
    """HTTP+SSE: each POST is accepted, and the GET stream says nothing but where to post."""
    if request.line.startswith("GET /sse"):
        endpoint = peer.upstream.url.encode() + b"/messages?session=1"
        await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: " + endpoint + b"\n\n"))
        await peer.left()
    else:
        await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))


# Rules


@asynccontextmanager
async def ruled(home: Path, rules: str, **options: Any) -> AsyncIterator[Filtered]:
    """Open an upstream, a proxy with these rules (a YAML list), and a client."""
    async with filtered(home, rules=[write(home, rules)], **options) as between:
        yield between


def write(home: Path, rules: str) -> str:
    path = home / "rules.yaml"
    path.write_text(f"interceptor:\n  rules:\n{rules}")
    return str(path)


def blocked(rule: str, reason: str, id: str = "1", action: str = "block") -> bytes:
    data = f'{{"rule":"{rule}","action":"{action}"}}'
    error = f'{{"code":-32001,"message":"{reason}","data":{data}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


SECRET = b'{"jsonrpc":"2.0","id":1,"result":{"content":[ {"type":"text","text":"sk-1 a"}],"n":1.0}}'


# An upstream whose tools change


async def ask(port: int, name: str) -> bytes:
    """Call a tool."""
    async with raw_client(port) as client:
        return (await client.ask(post(call(name)))).body


class Changing:
    """An upstream's tools, which a test changes."""

    def __init__(self) -> None:
        self.names = ["stays", "goes"]

    def __call__(self, request: RawRequest, id: str) -> bytes:
        assert json.loads(request.body)["method"] == "tools/list"
        return answer(tool_list([tool(name) for name in self.names], id=id))
