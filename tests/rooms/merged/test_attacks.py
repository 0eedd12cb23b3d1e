"""The attacks of ``tests/attacks`` through ``/mcp``: nothing hidden is called, or shown."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.attacks import answers, hostile_requests
from tests.attacks.corpus import cells, rows
from tests.attacks.readings import shows
from tests.attacks.ruled import POLICY
from tests.attacks.stage import ALLOWED_TOOL, DENIED_TOOL, MARK
from tests.cli.launched import launched
from tests.mcp_upstream import tool, tool_list
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, answer, raw_upstream
from tests.rooms.merged.talking import Talking
from tests.rooms.serve.test_serve import serving
from tests.session_upstream import session_upstream
from tests.shapes import LISTENING

DENIED = "delete_file"


def test_no_row_of_the_corpus_reaches_the_server(tmp_path: Path) -> None:
    """Each row is sent with the exposed name, and with the server's own, in a session."""
    bodies = [
        (label, one.replace(b"wipe_disk", name).replace(b"\\u0077ipe_disk", name))
        for section in ("calls", "calls that are no UTF-8, or long")
        for label, found in cells("requests", section)
        for one in found[:1]
        for name in (b"far_delete_file", b"delete_file")
    ]
    assert len(bodies) > 100
    with session_upstream() as remote:
        text = f'[servers.far]\nurl = "{remote.url}"\ndeny = ["^delete_"]\n'
        with serving(tmp_path, text) as it:
            it.says("far: http")
            client = Talking(it.port, "/mcp", revision="2025-03-26").opens()
            client.call("far_read_file")
            remote.forget()
            for label, body in bodies:
                connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=TIMEOUT)
                with suppress(http.client.HTTPException, ConnectionError):
                    connection.request("POST", "/mcp", body, client.headers({}))
                    connection.getresponse().read()
                connection.close()
                reached = [one for one in remote.calls() if DENIED in json.dumps(one.message)]
                assert reached == [], label
            assert b"result" in client.call("far_read_file"), "it still works"


@dataclass
class Hostile:
    """A server in a session; once it is ``armed``, it answers a request with these bytes."""

    tools: Sequence[bytes]
    armed: Sequence[bytes] | None = None
    heard: list[bytes] = field(default_factory=list)

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            self.heard.append(request.head + request.body)
            asked = json.loads(request.body) if request.body else {}
            if "id" not in asked:
                await peer.say(answer(b"", status="202 Accepted" if asked else "405 No"))
                continue
            method, id = asked["method"], json.dumps(asked["id"]).encode()
            if method == "initialize":
                hello = b'{"protocolVersion":"2025-03-26","capabilities":{"tools":{}}'
                hello += b',"serverInfo":{"name":"s","version":"1"}}'
                said = answer(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, hello))
                await peer.say(said.replace(b"\r\n", b"\r\nMcp-Session-Id: s\r\n", 1))
            elif self.armed is not None:
                for part in self.armed:
                    await peer.say(part)
                peer.close()
                return
            elif method == "tools/list":
                await peer.say(answer(tool_list(self.tools, id=id.decode())))
            else:
                await peer.say(answer(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % id))


@asynccontextmanager
async def merged(home: Path, server: Hostile, more: str) -> AsyncIterator[tuple[int, bytes]]:
    """Serve it at ``/mcp``; yield the port, and the headers of a session."""
    async with raw_upstream(server.serve) as there:
        file = home / "f.toml"
        file.write_text(f'[servers.far]\nurl = "{there.url}/mcp"\n{more}')
        async with launched("serve", f"--config={file}", "--log-format=none", home=home) as it:
            port = int((await it.says(LISTENING["serve"]))[1])
            hello = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":'
            hello += b'"2025-03-26","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
            async with raw_client(port) as client:
                opened = await client.ask(post(hello, path="/mcp", headers=MCP_HEADERS))
            found = re.search(rb"(?im)^mcp-session-id:.*\r\n", opened.head)
            assert found, opened
            yield port, MCP_HEADERS + found[0]


def a_call(name: str) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%b"}}' % name.encode()


@pytest.mark.rest
async def test_whatever_a_server_answers_the_hidden_tool_does_not_show(tmp_path: Path) -> None:
    """To a call, and now and then to a list, for which the server is asked in each session."""
    server = Hostile([ALLOWED_TOOL, DENIED_TOOL])
    more = 'deny = ["^wipe_"]\nnew-tools = "judge"\n'
    call, shown = a_call("far_read_file"), {}
    async with merged(tmp_path, server, more) as (port, headers):

        async def hears(body: bytes) -> bytes:
            async with raw_client(port) as client:
                closing = headers + b"Connection: close\r\n"
                await client.say(post(body, path="/mcp", headers=closing))
                return await client.rest()

        assert b'"result":{}' in await hears(call)
        attacks = {one.said: one.name for one in answers.ATTACKS}
        for number, (said, name) in enumerate(attacks.items()):
            server.armed = said
            heard = await hears(call if number % 5 else answers.LIST)
            if shows(heard, "wipe_disk", MARK):
                shown[name] = heard
        server.armed = None
        assert b'"result":{}' in await hears(call), "it still works"
    assert shown == {}


@pytest.mark.rest
async def test_no_framing_lets_a_call_of_the_hidden_tool_through(tmp_path: Path) -> None:
    """The exposed name is the one that the attacks call: wipe_ and the server's own name."""
    server = Hostile([tool("disk"), tool("file")])
    more = 'deny = ["^disk$"]\nprefix = "wipe_"\n'
    async with merged(tmp_path, server, more) as (port, headers):
        session = re.findall(rb"(?im)^mcp-session-id:.*\r\n", headers)[0]
        server.heard.clear()

        async def play(raw: bytes) -> None:
            with suppress(ConnectionError, TimeoutError):
                async with raw_client(port) as client, asyncio.timeout(0.5):
                    host = hostile_requests.HOST
                    ends = raw.startswith(b"DELETE")
                    await client.say(raw if ends else raw.replace(host, host + session, 1))
                    await client.rest()

        attacks = hostile_requests.ATTACKS
        for at in range(0, len(attacks), 50):
            await asyncio.gather(*(play(one.raw) for one in attacks[at : at + 50]))
        async with raw_client(port) as client:
            said = await client.ask(post(a_call("wipe_file"), path="/mcp", headers=headers))
        assert b'"result":{}' in said.body, "it still works"
    through = [one for one in server.heard if shows(one, "disk")]
    assert through == []


async def test_no_spelling_gets_past_a_servers_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(POLICY)
    server = Hostile([tool("read_file")])
    async with merged(tmp_path, server, 'rules = "rules.yaml"\n') as (port, headers):
        for label, row in rows("rules", "refused"):
            body = row.replace(b'"read_file"', b'"far_read_file"')
            async with raw_client(port) as client:
                got = await client.ask(post(body, path="/mcp", headers=headers))
            assert got.status in (200, 202, 400), label
            assert not any(b"/etc" in one for one in server.heard), label
        honest = a_call("far_read_file").replace(b"}}", b',"arguments":{"kind":"draft"}}}')
        async with raw_client(port) as client:
            got = await client.ask(post(honest, path="/mcp", headers=headers))
        assert b'"result":{}' in got.body
