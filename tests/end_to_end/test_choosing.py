"""One choice of tools by names and hints, in every shape of the filter: a call before the list, the
list, and a call after it agree, and nothing else reaches the server."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands.test_serve import serving
from tests.cli.launched import launched
from tests.mcp_upstream import tool as definition
from tests.mcp_upstream import tool_list
from tests.proxy import SCRIPT, tool
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, raw_upstream
from tests.stdio_client import filtered
from tests.websocket import accept, connect

type Message = dict[str, Any]

CHOICE: dict[str, Any] = {
    "allow": "(?:_file|mine)$",
    "deny": "^delete_",
    "except": "^write_mine$",
    "read-only": True,
    "deny-hint": "open-world",
}
FLAGS = [
    word
    for name, value in CHOICE.items()
    for word in (f"--{name}", *([] if value is True else [value]))
]
TOML = "".join(f"{name} = {json.dumps(value)}\n" for name, value in CHOICE.items())
SETS = [
    word
    for name, value in CHOICE.items()
    for word in ("--set", f"{name.replace('-', '_')}={str(value).removesuffix('True') or 'true'}")
]
CLOSED = '"readOnlyHint":true,"openWorldHint":false'
READING = f"{{{CLOSED}}}"
ANNOTATIONS = {
    "write_file": "{}",
    "odd_file": READING.replace("true", '"true"'),
    "twice_file": f"{{{CLOSED},{CLOSED}}}",
    "open_file": '{"readOnlyHint":true}',
    "read_file": READING,
    "delete_file": READING,
    "write_mine": '{"destructiveHint":true}',
    "say": READING,
}
TOOLS = [definition(name, f',"annotations":{said}') for name, said in ANNOTATIONS.items()]
EXPOSED = ["read_file", "write_mine"]


def message(method: str, id: int = 1, **params: object) -> Message:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def call(name: str, id: int = 1, **more: object) -> Message:
    return message("tools/call", id, name=name, arguments={}, **more)


def notification(name: str) -> Message:
    return {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": name}}


INITIALIZE = message("initialize", 0, protocolVersion="2025-03-26", capabilities={})
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
HELLO = {"protocolVersion": "2025-03-26", "serverInfo": {"name": "made-up", "version": "1"}}


def answer_to(asked: Message) -> bytes:
    method, id = asked["method"], json.dumps(asked["id"])
    if method == "tools/list":
        return tool_list(TOOLS, id=id)
    results: dict[str, object] = {
        "initialize": HELLO | {"capabilities": {"tools": {}}},
        "tools/call": {"content": [{"type": "text", "text": str(asked["params"].get("name"))}]},
    }
    if method not in results:
        error = {"code": -32601, "message": "Method not found"}
        return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode()
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": results[method]}).encode()


@dataclass
class Server:
    """A server over HTTP that answers in the form in which it is asked."""

    as_events: bool = False
    is_legacy: bool = False
    url: str = ""
    called: list[str] = field(default_factory=list)
    _streams: dict[str, Peer] = field(default_factory=dict)

    def _answers(self, body: bytes) -> bytes:
        asked = json.loads(body)
        every = asked if isinstance(asked, list) else [asked]
        self.called += [one["params"]["name"] for one in every if one["method"] == "tools/call"]
        answers = [answer_to(one) for one in every if "id" in one]
        return b"[" + b",".join(answers) + b"]" if asked is every else b"".join(answers)

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            if b"upgrade: websocket" in request.head.lower():
                await self._serve_socket(request, peer)
            elif request.line.startswith("GET /sse") and self.is_legacy:
                number = str(len(self._streams))
                self._streams[number] = peer
                place = f"event: endpoint\ndata: /messages?s={number}\n\n"
                await peer.say(SSE_HEAD + chunk(place.encode()))
                await peer.left()
            elif request.line.startswith("POST /messages") and self.is_legacy:
                said = self._answers(request.body)
                await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
                if said:
                    number = request.line.partition("s=")[2].partition(" ")[0]
                    await self._streams[number].say_event(said)
            elif request.line.startswith("POST") and not self.is_legacy:
                await peer.say(self._posted(request))
            else:
                await peer.say(answer(b"", status="405 Method Not Allowed"))

    def _posted(self, request: RawRequest) -> bytes:
        said = self._answers(request.body)
        if not said:
            return answer(b"", status="202 Accepted")
        if self.as_events:
            return SSE_HEAD + chunk(b"data: " + said + b"\n\n") + LAST_CHUNK
        return answer(said)

    async def _serve_socket(self, request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while (said := await socket.hear()) is not None:
            if answered := self._answers(said):
                await socket.say(answered)


@asynccontextmanager
async def server(*, as_events: bool = False, is_legacy: bool = False) -> AsyncIterator[Server]:
    it = Server(as_events=as_events, is_legacy=is_legacy)
    async with raw_upstream(it.serve) as raw:
        it.url = raw.url + ("/sse" if it.is_legacy else "/mcp")
        yield it


COMMAND = """
import sys
sys.path.insert(0, sys.argv[1])
import json
from pathlib import Path
definitions, journal = Path(sys.argv[2]).read_text(), open(sys.argv[3], "a", buffering=1)
hello = json.loads(sys.argv[4])

def answer_to(asked):
    method, id = asked["method"], json.dumps(asked["id"])
    result = json.dumps(hello)
    if method == "tools/list":
        result = '{"tools":[%s]}' % definitions
    elif method == "tools/call":
        text = asked["params"]["name"]
        result = json.dumps({"content": [{"type": "text", "text": text}]})
    return '{"jsonrpc":"2.0","id":%s,"result":%s}' % (id, result)

for line in sys.stdin:
    asked = json.loads(line)
    every = asked if isinstance(asked, list) else [asked]
    for one in every:
        if one["method"] == "tools/call":
            print(one["params"]["name"], file=journal)
    answers = [answer_to(one) for one in every if "id" in one]
    if answers:
        print("[%s]" % ",".join(answers) if asked is every else answers[0], flush=True)
"""


def command(folder: Path) -> list[str]:
    """The words that start the same server over stdio; it writes what is called into a file."""
    (folder / "definitions").write_bytes(b",".join(TOOLS))
    (folder / "journal").write_text("")
    hello = json.dumps(HELLO | {"capabilities": {"tools": {}}})
    places = (str(folder), str(folder / "definitions"), str(folder / "journal"))
    return [sys.executable, "-c", COMMAND, *places, hello]


@dataclass
class Shape:
    """A way to the server."""

    tell: Callable[[object], Awaitable[None]]
    hear: Callable[[], Awaitable[bytes]]
    """Wait for the next message."""
    called: Callable[[], list[str]]
    """What was called there."""

    async def ask(self, *said: Message) -> dict[int, Message]:
        """Say it, several requests in a batch; return the answers by their ids."""
        await self.tell(list(said) if len(said) > 1 else said[0])
        answers: dict[int, Message] = {}
        while len(answers) < sum("id" in one for one in said):
            heard = json.loads(await self.hear())
            answers |= {one["id"]: one for one in (heard if type(heard) is list else [heard])}
        return answers


async def shaken_hands(shape: Shape) -> Shape:
    assert "result" in (await shape.ask(INITIALIZE))[0]
    await shape.tell(READY)
    return shape


async def over_http(
    port: int, called: Callable[[], list[str]], path: str = "/mcp", *, who: str = "Bearer ann"
) -> Shape:
    headers = [MCP_HEADERS, f"Authorization: {who}\r\n".encode()] if who else [MCP_HEADERS]
    heard: list[bytes] = []

    async def tell(said: object) -> None:
        async with raw_client(port) as client:
            request = post(json.dumps(said).encode(), path=path, headers=b"".join(headers))
            got = await client.ask(request)
        headers.extend(re.findall(rb"(?im)^mcp-session-id:[^\r]*\r\n", got.head))
        if got.status == 200:
            heard.extend(re.findall(rb"(?m)^data: (.*)$", got.body) or [got.body])

    async def hear() -> bytes:
        return heard.pop(0)

    return await shaken_hands(Shape(tell, hear, called))


type Opened = AsyncIterator[Shape]


@asynccontextmanager
async def launcher(home: Path, *, as_events: bool = False, who: str = "Bearer ann") -> Opened:
    async with (
        server(as_events=as_events) as there,
        launched("--upstream", there.url, *FLAGS, home=home) as it,
    ):
        yield await over_http(await it.serving(), lambda: there.called, who=who)


@asynccontextmanager
async def environment(home: Path) -> Opened:
    variables = {
        f"MCP_TOOL_FILTER_{name.upper().replace('-', '_')}": str(value).replace("True", "true")
        for name, value in CHOICE.items()
    }
    async with (
        server() as there,
        launched("--upstream", there.url, home=home, environment=variables) as it,
    ):
        yield await over_http(await it.serving(), lambda: there.called)


@asynccontextmanager
async def web_socket(home: Path, **headers: str) -> Opened:
    async with (
        server() as there,
        launched("--upstream", there.url, *FLAGS, home=home) as it,
        raw_client(await it.serving()) as client,
    ):
        own = [(name.encode(), value.encode()) for name, value in headers.items()]
        socket = await connect(client.reader, client.writer, headers=own)

        async def tell(said: object) -> None:
            await socket.say(json.dumps(said).encode())

        async def hear() -> bytes:
            return await socket.hear() or b""

        yield Shape(tell, hear, lambda: there.called)


@asynccontextmanager
async def legacy(home: Path) -> Opened:
    async with (
        server(is_legacy=True) as there,
        launched("--upstream", there.url, *FLAGS, home=home) as it,
        raw_client(await it.serving()) as stream,
        raw_client(it.port) as poster,
    ):
        headers = MCP_HEADERS + b"Authorization: Bearer ann\r\n"
        await stream.say(get(path="/sse", headers=headers))
        await stream.head()
        place = (await stream.chunk()).decode().partition("data: ")[2].strip()

        async def tell(said: object) -> None:
            await poster.ask(post(json.dumps(said).encode(), path=place, headers=headers))

        async def hear() -> bytes:
            return (await stream.chunk()).removeprefix(b"data: ")

        yield await shaken_hands(Shape(tell, hear, lambda: there.called))


@asynccontextmanager
async def mitmdump(home: Path) -> Opened:
    async with server() as there:
        mode = f"reverse:{there.url.removesuffix('/mcp')}"
        async with tool("mitmdump", "-s", SCRIPT, "--mode", mode, *SETS, home=home) as it:
            port = await it.listening()
            await it.says("Saved: ")
            yield await over_http(port, lambda: there.called)


@asynccontextmanager
async def forward_proxy(home: Path) -> Opened:
    words = ("-s", SCRIPT, "--mode", "regular", *SETS)
    async with server() as there, tool("mitmdump", *words, home=home) as it:
        port = int((await it.says(r"proxy listening at \S*:(\d+)"))[1])
        yield await over_http(port, lambda: there.called, there.url)


@asynccontextmanager
async def over_stdio(home: Path, *words: str, called: Callable[[], list[str]]) -> Opened:
    with filtered(*words, home=home) as client:

        async def tell(said: object) -> None:
            client.say(json.dumps(said).encode())

        async def hear() -> bytes:
            return await asyncio.to_thread(client.hears_line)

        yield await shaken_hands(Shape(tell, hear, called))


def journal(home: Path) -> Callable[[], list[str]]:
    return lambda: (home / "journal").read_text().split()


def relay(home: Path) -> AbstractAsyncContextManager[Shape]:
    return over_stdio(home, *FLAGS, "--", *command(home), called=journal(home))


def config_file(home: Path) -> AbstractAsyncContextManager[Shape]:
    (home / "c.toml").write_text(TOML)
    words = ("--config", str(home / "c.toml"), "--", *command(home))
    return over_stdio(home, *words, called=journal(home))


def named_server(home: Path) -> AbstractAsyncContextManager[Shape]:
    """Its own exceptions and hints add to those for all servers, and its allow list narrows."""
    (home / "c.toml").write_text(_two_parts(home))
    words = ("--config", str(home / "c.toml"), "--server", "made-up")
    return over_stdio(home, *words, called=journal(home))


def _two_parts(home: Path) -> str:
    return (
        'deny = "^delete_"\ndeny-hint = "open-world"\nexcept = "^write_m"\nallow = "_file|mine|y$"'
        f"\n[servers.made-up]\ncommand = {json.dumps(command(home))}\nread-only = true\n"
        'except = "^none"\nallow = "(?:_file|mine)$"\n'
    )


@asynccontextmanager
async def pipe(home: Path) -> Opened:
    async with server() as there:
        words = ("--stdio", "--upstream", there.url, *FLAGS)
        async with over_stdio(home, *words, called=lambda: there.called) as shape:
            yield shape


@asynccontextmanager
async def bridge(home: Path) -> Opened:
    async with launched("--port", "0", *FLAGS, "--", *command(home), home=home) as it:
        yield await over_http(await it.serving(), journal(home))


@asynccontextmanager
async def serve(home: Path) -> Opened:
    with serving(home, _two_parts(home)) as it:
        yield await over_http(it.port, journal(home), "/made-up/mcp", who="")


SHAPES: dict[str, Callable[[Path], AbstractAsyncContextManager[Shape]]] = {
    "JSON": launcher,
    "events": partial(launcher, as_events=True),
    "our own asker": partial(launcher, who=""),
    "environment": environment,
    "websocket": web_socket,
    "legacy stream": legacy,
    "mitmdump": mitmdump,
    "forward proxy": forward_proxy,
    "relay": relay,
    "config file": config_file,
    "--server": named_server,
    "pipe": pipe,
    "bridge": bridge,
    "serve": serve,
}


def not_found(name: str, id: int = 1) -> Message:
    error = {"code": -32601, "message": f"Tool not found: {name}"}
    return {"jsonrpc": "2.0", "id": id, "error": error}


QUICK = ("relay", "pipe", "websocket")


@pytest.mark.parametrize("is_listed", [False, True], ids=["before the list", "after it"])
@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.rest) for one in SHAPES]
)
async def test_lists_and_calls_agree_in_every_shape(
    name: str, is_listed: bool, tmp_path: Path
) -> None:
    async with SHAPES[name](tmp_path) as shape:

        async def names() -> list[str]:
            listed = (await shape.ask(message("tools/list")))[1]
            return [one["name"] for one in listed["result"]["tools"]]

        if is_listed:
            assert await names() == EXPOSED
        for one in (*ANNOTATIONS, "none"):
            await shape.tell(notification(one))
            answered = (await shape.ask(call(one)))[1]
            if one in EXPOSED:
                assert answered["result"]["content"][0]["text"] == one
            else:
                assert answered == not_found(one)
        every = [call(one, at, task={"ttl": 1}) for at, one in enumerate(ANNOTATIONS)]
        answers = await shape.ask(*every, notification("odd_file"))
        for at, one in enumerate(ANNOTATIONS):
            assert ("result" in answers[at]) is (one in EXPOSED)
        assert await names() == EXPOSED
        for one in ("say", "open_file"):
            assert (await shape.ask(call(one)))[1] == not_found(one)
        assert sorted(shape.called()) == sorted(3 * EXPOSED)


async def test_over_a_websocket_we_ask_for_nobody_so_who_has_not_listed_yet_calls_nothing(
    tmp_path: Path,
) -> None:
    """Somebody else's list, such as that of our own fetch, does not judge the tool."""
    async with web_socket(tmp_path, Authorization="Bearer ann") as shape:
        for name in ("read_file", "write_file"):
            assert (await shape.ask(call(name)))[1] == not_found(name)
        assert "result" in (await shape.ask(call("write_mine")))[1]  # needs no definition
        listed = (await shape.ask(message("tools/list")))[1]["result"]["tools"]
        assert [one["name"] for one in listed] == EXPOSED
        assert "result" in (await shape.ask(call("read_file")))[1]
        assert (await shape.ask(call("write_file")))[1] == not_found("write_file")
        assert shape.called() == ["write_mine", "read_file"]
