"""The end of the process, in each of mitmproxy's tools as users start them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proxy import REPOSITORY, tool
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, Script, answer, chunk, raw_upstream

TOOLS = ["mitmdump", "mitmweb", "mitmproxy"]
REASON = "Error: Lost connection to upstream MCP\nShutting down proxy\n"

ADDON = """
import sys
sys.path.insert(0, {path!r})
from mcp_tool_filter.adapters.mitmproxy.forward.exit import Ending
from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import (
    ErrorAnswer,
    install_error_answers,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import (
    choose_layer,
)
from mitmproxy.http import Response

install_error_answers(
    lambda flow, failure: ErrorAnswer(Response.make(200, failure.encode()), b"data: last\\n\\n")
)
REASON = {reason!r}

class Filter:
    def __init__(self):
        self.ending = Ending(grace={grace})

    def next_layer(self, layer):
        choose_layer(layer)

    def running(self):
        if {at_start}:
            self.ending.fatal(REASON)

    def request(self, flow):
        if flow.request.path == "/fatal":
            self.ending.fatal(REASON)
            self.ending.fatal("a second reason is of no account")
            flow.response = Response.make(200, b"the trigger")

    def responseheaders(self, flow):
        if "event-stream" in flow.response.headers.get("content-type", ""):
            flow.response.stream = lambda data: [data] if data else []

    def done(self):
        self.ending.done()

addons = [Filter()]
"""


def script(home: Path, *, at_start: bool = False, grace: float = 20) -> str:
    path = home / "script.py"
    addon = str(REPOSITORY / "addon")
    reason = REASON.rstrip("\n")
    path.write_text(ADDON.format(path=addon, reason=reason, at_start=at_start, grace=grace))
    return str(path)


@pytest.mark.parametrize("name", TOOLS)
async def test_a_failed_start_prints_only_the_reason(name: str, tmp_path: Path) -> None:
    mode = "reverse:http://127.0.0.1:1"
    loaded = script(tmp_path, at_start=True)
    async with tool(name, "-s", loaded, "--mode", mode, home=tmp_path) as running:
        assert (await running.exit_code(), running.stderr) == (1, REASON)


async def test_the_console_leaves_the_screen_before_the_reason_is_printed(tmp_path: Path) -> None:
    """What is written before goes with the screen."""

    loaded = script(tmp_path, at_start=True)
    arguments = ["-s", loaded, "--mode", "reverse:http://127.0.0.1:1"]
    async with tool("mitmproxy", *arguments, home=tmp_path, stderr_in_terminal=True) as running:
        assert await running.exit_code() == 1
        leave_screen = "\x1b[?1049l"
        assert REASON.replace("\n", "\r\n") in running.stdout.split(leave_screen)[-1]


def slow(released: asyncio.Event) -> Script:
    """Answer /events with an endless stream, and all else when it is released."""

    async def script(peer: Peer) -> None:
        while request := await peer.request():
            if "/events" in request.line:
                await peer.say(SSE_HEAD + chunk(b"data: first\n\n"))
            else:
                await released.wait()
                await peer.say(answer(b"slow"))

    return script


@pytest.mark.parametrize("name", TOOLS)
async def test_waiting_clients_are_answered_before_the_process_ends(
    name: str, tmp_path: Path
) -> None:
    released = asyncio.Event()
    loaded = script(tmp_path)
    async with (
        raw_upstream(slow(released)) as upstream,
        tool(name, "-s", loaded, "--mode", f"reverse:{upstream.url}", home=tmp_path) as it,
    ):
        port = await it.listening()
        async with (
            raw_client(port) as listening,
            raw_client(port) as waiting,
            raw_client(port) as client,
        ):
            await listening.say(get(path="/events"))
            await listening.until(b"data: first\n\n\r\n")
            await waiting.say(post(b"{}", path="/slow"))
            await upstream.asked(2)
            assert (await client.ask(get(path="/fatal"))).body == b"the trigger"
            released.set()
            assert (await waiting.answer()).body == b"slow"
            assert await listening.rest_of_chunks() == (b"data: last\n\n", True)
        assert (await it.exit_code(), it.stderr) == (1, REASON)


async def test_a_client_that_waits_beyond_the_grace_period_gets_upstream_lost(
    tmp_path: Path,
) -> None:
    loaded = script(tmp_path, grace=0.1)
    async with (
        raw_upstream(slow(asyncio.Event())) as upstream,
        tool("mitmdump", "-s", loaded, "--mode", f"reverse:{upstream.url}", home=tmp_path) as it,
    ):
        port = await it.listening()
        async with raw_client(port) as waiting, raw_client(port) as client:
            await waiting.say(post(b"{}", path="/slow"))
            await upstream.asked(1)
            await client.ask(get(path="/fatal"))
            assert (await waiting.answer()).body == b"lost"
        assert (await it.exit_code(), it.stderr) == (1, REASON)


def test_our_own_master_ends_in_the_same_way(tmp_path: Path) -> None:
    script(tmp_path, at_start=True)
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(tmp_path)!r})
from mitmproxy import master, options
from mitmproxy.addons import core, next_layer, proxyserver, tlsconfig
import script

async def main():
    own = master.Master(options.Options())
    own.addons.add(
        core.Core(), proxyserver.Proxyserver(), next_layer.NextLayer(), tlsconfig.TlsConfig(),
        *script.addons,
    )
    own.options.update(confdir={str(tmp_path)!r}, mode=["reverse:http://127.0.0.1:1"],
        listen_host="127.0.0.1", listen_port=0)
    await own.run()

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, REASON)
