"""One made-up MCP server in every transport, and the filter in every shape before it.

    server = Server(tools=[tool("read_file"), tool("delete_file")])
    async with shape("relay", server, tmp_path, {"deny": "^delete_"}) as talk:
        answered = await talk.ask(call("delete_file"))
    assert server.called() == []

The server lives in the test. Where the filter needs a command, it is one that carries lines to the
server and back.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.cli.launched import launched
from tests.mcp_upstream import tool_list
from tests.proxy import SCRIPT, RunningTool, proxy
from tests.proxy import tool as program
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, raw_upstream
from tests.served import served
from tests.stdio_client import StdioClient, filtered

type Message = dict[str, Any]
type Options = Mapping[str, str | bool]

TRANSPORTS = [("HTTP", False), ("HTTP", True), ("legacy stream", False)]
"""Of the client; and whether the server answers with events."""
REVISION = "2025-03-26"  # the last one with batches
COMMAND = """
import http.client, sys
for line in sys.stdin.buffer:
    server = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    server.request("POST", "/lines", line)
    sys.stdout.buffer.write(server.getresponse().read())
    sys.stdout.buffer.flush()
"""


def message(method: str, id: int = 1, /, **params: object) -> Message:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def call(name: str, id: int = 1, **more: object) -> Message:
    return message("tools/call", id, name=name, arguments={}, **more)


def not_found(name: str, id: int = 1) -> Message:
    error = {"code": -32601, "message": f"Tool not found: {name}"}
    return {"jsonrpc": "2.0", "id": id, "error": error}


def notification(method: str, /, **params: object) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params}


# The server


def name_of(asked: Message) -> Message:
    """Answer a call with the tool's name."""
    return {"content": [{"type": "text", "text": str(asked["params"].get("name"))}]}


@dataclass
class Server:
    """Answers in the transport in which it is asked, JSON or events as it is told to."""

    tools: Sequence[bytes] = ()
    results: Mapping[str, object] = field(default_factory=dict)
    """What it answers to other methods."""
    calls: Callable[[Message], Message] = name_of
    """What it answers to a call."""
    news: Sequence[Message] = ()
    """It says them before each answer, where that is possible."""
    as_events: bool = False
    is_legacy: bool = False
    """It has no transport but HTTP+SSE."""
    posts: str = "/messages"
    """Where clients of HTTP+SSE post."""
    head: bytes = b""
    """More headers of its answers."""
    announces: bool = False
    """It says at initialize that it announces changes of its list."""
    heard: list[bytes] = field(default_factory=list)
    port: int = 0
    _streams: list[Peer] = field(default_factory=list)

    def called(self) -> list[str]:
        """The tools that were called, oldest first, also in batches."""
        every = [json.loads(one) for one in self.heard]
        asked = [one for said in every for one in (said if isinstance(said, list) else [said])]
        return [one["params"]["name"] for one in asked if one.get("method") == "tools/call"]

    def _result(self, asked: Message) -> object:
        match asked["method"]:
            case "initialize":
                hello: Message = {"capabilities": {"tools": {"listChanged": self.announces}}}
                hello["serverInfo"] = {"name": "made-up", "version": "1"}
                return hello | {"protocolVersion": asked["params"]["protocolVersion"]}
            case "tools/call":
                return self.calls(asked)
            case method:
                return self.results.get(method)

    def answer_to(self, asked: Message, _request: RawRequest) -> bytes:
        if asked["method"] == "tools/list":
            return tool_list(self.tools, id=json.dumps(asked["id"]))
        if (result := self._result(asked)) is None:
            said: Message = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            said = {"result": result}
        return json.dumps({"jsonrpc": "2.0", "id": asked["id"]} | said).encode()

    def _answers(self, body: bytes, request: RawRequest) -> list[bytes]:
        """Return what it says to a message: its news, and the answer."""
        self.heard.append(body)
        asked = json.loads(body)
        every = asked if isinstance(asked, list) else [asked]
        answers = [self.answer_to(one, request) for one in every if "id" in one]
        if not answers:
            return []
        last = b"[%b]" % b",".join(answers) if asked is every else answers[0]
        return [*(json.dumps(one).encode() for one in self.news), last]

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            method, path, _ = request.line.split(" ")
            if method == "GET" and path.endswith("/sse"):
                self._streams.append(peer)
                below = path.removesuffix("/sse")
                named = f"{below}{self.posts}?s={len(self._streams) - 1}"
                place = f"event: endpoint\ndata: {named}\n\n"
                await peer.say(SSE_HEAD + chunk(place.encode()))
                await peer.left()
            elif f"{self.posts}?" in path:
                await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
                for one in self._answers(request.body, request):
                    await self._streams[int(path.partition("s=")[2])].say_event(one)
            elif path == "/lines":
                said = self._answers(request.body[:-1], request)
                await peer.say(answer(b"".join(one + b"\n" for one in said)))
            elif method == "POST" and not self.is_legacy:
                await peer.say(await self.posted(request))
            else:
                await self.other(request, peer)

    async def other(self, _request: RawRequest, peer: Peer) -> None:
        await peer.say(answer(b"", status="405 Method Not Allowed"))

    async def posted(self, request: RawRequest) -> bytes:
        answers = self._answers(request.body, request)
        if not answers:
            return answer(b"", status="202 Accepted")
        said = answer(answers[-1])
        if self.as_events:
            said = SSE_HEAD + b"".join(chunk(b"data: %b\n\n" % x) for x in answers) + LAST_CHUNK
        return said.replace(b"\r\n", b"\r\n" + self.head, 1)


# The client


@dataclass
class Talk:
    """A client's way to the server."""

    say: Callable[[bytes], Awaitable[None]]
    hear: Callable[[], Awaitable[bytes]]
    """Wait for what comes next, in its own bytes."""
    news: list[Message] = field(default_factory=list)
    """What was heard beside answers."""
    stderr: Callable[[], str] = str
    """What the filter has said so far."""
    port: int = 0
    path: str = ""

    async def tell(self, said: object) -> None:
        await self.say(json.dumps(said).encode())

    async def ask(self, said: Message) -> Message:
        return (await self.ask_all(said))[said["id"]]

    async def ask_all(self, *said: Message) -> dict[int, Message]:
        """Say it, several messages in a batch; return the answers by their ids."""
        await self.tell(list(said) if len(said) > 1 else said[0])
        answers: dict[int, Message] = {}
        while len(answers) < sum("id" in one for one in said):
            heard = await self.hear()
            for text in re.findall(rb"(?m)^data: (.*)$", heard) or [heard]:
                read = json.loads(text)
                for one in read if isinstance(read, list) else [read]:
                    if "id" in one:
                        answers[one["id"]] = one
                    else:
                        self.news.append(one)
        return answers

    async def names(self) -> list[str]:
        """List the tools."""
        listed = await self.ask(message("tools/list"))
        return [one["name"] for one in listed["result"]["tools"]]

    async def opens(self) -> None:
        asked = message("initialize", 0, protocolVersion=REVISION, capabilities={})
        assert "result" in await self.ask(asked)
        await self.tell(notification("notifications/initialized"))


@asynccontextmanager
async def talking(
    transport: str, port: int, path: str = "/mcp", *, who: str = ""
) -> AsyncIterator[Talk]:
    """Talk over ``HTTP`` or a ``legacy stream``, with a token."""
    headers = [MCP_HEADERS, *([f"Authorization: {who}\r\n".encode()] if who else [])]
    heard: list[bytes] = []

    async def posted(said: bytes, to: str = path) -> None:
        async with raw_client(port) as client:
            got = await client.ask(post(said, path=to, headers=b"".join(headers)))
        headers.extend(re.findall(rb"(?im)^mcp-session-id:[^\r]*\r\n", got.head))
        if got.status == 200:
            heard.append(got.body)

    async def answered() -> bytes:
        return heard.pop(0)

    if transport == "HTTP":
        yield Talk(posted, answered, port=port, path=path)
        return
    async with raw_client(port) as client:
        page = f"{path.removesuffix('/mcp')}/sse" if path.startswith("/") else "/sse"
        await client.say(get(path=page, headers=b"".join(headers)))
        await client.head()
        place = (await client.chunk()).decode().partition("data: ")[2].strip()
        yield Talk(partial(posted, to=place), client.chunk, port=port, path=path)


def lines(client: StdioClient) -> Talk:
    async def say(said: bytes) -> None:
        client.say(said)

    async def hear() -> bytes:
        return (await asyncio.to_thread(client.hears_line)).removesuffix(b"\n")

    return Talk(say, hear, stderr=client.stderr)


# The filter


STDIO = "relay", "config file", "--server", "pipe"
IN_PROCESS = "sockets", "mitmproxy"
IN_MITMDUMP = "mitmdump", "forward proxy"
LISTENING = {
    "launcher": r"MCP tool filter: http://\S*:(\d+)\S* -> (?s:.*)Saved: ",
    "serve": r"MCP tool filter: http://\S*:(\d+) -> ",
    "mitmdump": r"proxy to .* listening at \S*:(\d+)(?s:.*)Saved: ",
    "forward proxy": r"proxy listening at \S*:(\d+)",
}
LISTENING["environment"] = LISTENING["bridge"] = LISTENING["launcher"]


def flags(options: Options) -> list[str]:
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()]


def toml(options: Options) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())


def texts(options: Options) -> dict[str, str]:
    """Options by the names that they have in mitmproxy."""
    values = {key: "true" if one is True else str(one) for key, one in options.items()}
    return {key.replace("-", "_"): value for key, value in values.items()}


def words_of(
    name: str, url: str, command: Sequence[str], options: Options, file: Path
) -> list[str]:
    """Return the words that start the filter as a command of its own."""
    given, behind, configured = flags(options), ["--upstream", url], ["--config", str(file)]
    return {
        "launcher": [*behind, *given], "environment": behind, "pipe": ["--stdio", *behind, *given],
        "relay": [*given, "--", *command], "bridge": ["--port", "0", *given, "--", *command],
        "config file": [*configured, "--", *command],
        "--server": [*configured, "--server", "made-up"], "serve": ["serve", *configured],
    }[name]  # fmt: skip


def over_http(
    name: str, origin: str, words: list[str], home: Path, options: Options
) -> AbstractAsyncContextManager[Any]:
    """Start what listens: in mitmdump, in this process, or as a command of its own."""
    known = texts(options)
    many: Any = {key: [one] for key, one in known.items()} | {"endpoint": ["/mcp"]}
    match name:
        case "sockets":
            return served(to=origin, home=home, **many)
        case "mitmproxy":
            return proxy(ToolFilter(), to=origin, home=home, **many)
        case "mitmdump" | "forward proxy":
            mode = "regular" if name == "forward proxy" else f"reverse:{origin}"
            hosts = {"hosts": "127.0.0.1"} if name == "forward proxy" else {}
            sets = [f"--set={key}={one}" for key, one in (known | hosts).items()]
            return program("mitmdump", "-s", SCRIPT, "--mode", mode, *sets, home=home)
        case "environment":
            variables = {f"MCP_TOOL_FILTER_{key.upper()}": one for key, one in known.items()}
            return launched(*words, home=home, environment=variables)
        case _:
            return launched(*words, home=home)


async def ended(it: RunningTool) -> None:
    """Let it end as a person does: what it writes is written then."""
    it.interrupt()
    assert await it.exit_code() == 0, it.stderr


@asynccontextmanager
async def shape(
    name: str, server: Server, home: Path, options: Options, *,
    own: Options | None = None, transport: str = "HTTP", who: str = "",
) -> AsyncIterator[Talk]:  # fmt: skip
    """Run the filter before a server until the end of the block, and open a talk through it.

    ``own`` are the options of the one server in the file of ``--server`` and ``serve``.
    """
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(raw_upstream(server.serve))
        server.port = there.port
        url = f"{there.url}/{'sse' if server.is_legacy else 'mcp'}"
        command = [sys.executable, "-c", COMMAND, str(there.port)]
        file = home / "shape.toml"
        section = f"[servers.made-up]\ncommand = {json.dumps(command)}\n"
        file.write_text(toml(options) + (section + toml(own) if own is not None else ""))
        is_command = name not in IN_PROCESS and name not in IN_MITMDUMP
        words = words_of(name, url, command, options, file) if is_command else []
        if name in STDIO:
            client = stack.enter_context(filtered(*words, home=home))
            talk = lines(client)
            await talk.opens()
            yield talk
            assert await asyncio.to_thread(client.leaves) == 0
            return
        it = await stack.enter_async_context(over_http(name, there.url, words, home, options))
        said: Callable[[], str] = str
        if name == "sockets":
            port, said = it.port, lambda: "\n".join(it.warnings + it.reports)
        elif name == "mitmproxy":
            port = it.port
        else:
            port, said = int((await it.says(LISTENING[name]))[1]), lambda: it.stdout + it.stderr
            stack.push_async_callback(ended, it)
        path = {"serve": "/made-up/mcp", "forward proxy": url}.get(name, "/mcp")
        talk = await stack.enter_async_context(talking(transport, port, path, who=who))
        await talk.opens()
        talk.stderr = said
        yield talk
