"""How a replica ends: not ready at once, and open calls finish on every transport."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.cli.commands.proxying import CALL, LIST, TOOLS, silent
from tests.cli.launched import launched, run
from tests.filtered import Changing, ask, not_found
from tests.hosts import LAUNCHER, filtering, hosted
from tests.make import asking
from tests.mcp_upstream import RESULT, McpUpstream, mcp_upstream
from tests.proxy import RunningTool
from tests.raw_client import RawClient, get, post, raw_client
from tests.raw_upstream import SSE_HEAD, TIMEOUT, Peer, RawRequest, answer, free_port, until
from tests.rooms.telemetry.test_metrics import fetched
from tests.stdio_client import is_alive, upstream

HOSTS = ["mitmdump", "mcp-tool-filter", "--record", "serve"]
call = CALL % (1, b"read_file")
ANSWER = RESULT.replace(b'"id":1', b'"id":"1"')
REFUSED_STREAM = 7
JSON = b"application/json"
H2_HEADERS = [(b"content-type", JSON), (b"accept", JSON + b", text/event-stream")]


@asynccontextmanager
async def replica(
    host: str, upstream: McpUpstream, home: Path, drain: str
) -> AsyncIterator[tuple[RunningTool, int]]:
    """Run one; also yield the port of its metrics."""
    metrics = free_port()
    if host == "serve":
        file = home / "servers.toml"
        file.write_text(
            f'deny = ["^rm_"]\ndrain = {drain}\nmetrics-port = {metrics}\n'
            f'[servers.one]\nurl = "{upstream.url}/mcp"\n'
        )
        async with launched("serve", "--config", str(file), home=home) as it:
            it.port = int((await it.says(r"http://127.0.0.1:(\d+)/one/mcp"))[1])
            await until_ready(metrics)
            yield it, metrics
    else:
        words = ["deny=^rm_", f"drain={drain}", f"metrics_port={metrics}"]
        words += [host, str(home / "all.flow")] if host == "--record" else []
        async with hosted(host, upstream.url, home, *words) as it:
            yield it, metrics


async def until_ready(metrics: int, *, is_ready: bool = True) -> None:
    while (await asyncio.to_thread(fetched, metrics, "/readyz"))[0] != (200 if is_ready else 503):
        await asyncio.sleep(0.01)


def is_refused(port: int) -> bool:
    with socket.socket() as door:
        return door.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("host", HOSTS)
async def test_open_calls_finish_within_the_users_time(host: str, tmp_path: Path) -> None:
    may_answer, called = asyncio.Event(), asyncio.Semaphore(0)

    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET"):
            await peer.say(SSE_HEAD)
            await peer.left()
        else:
            called.release()
            await may_answer.wait()
            await peer.say(answer(ANSWER))

    async with (
        mcp_upstream(tools=TOOLS, respond=respond) as upstream,
        replica(host, upstream, tmp_path, "60") as (it, metrics),
        AsyncExitStack() as stack,
    ):
        path, enter = "/one/mcp" if host == "serve" else "/mcp", stack.enter_async_context
        busy, idle, stream = [await enter(raw_client(it.port)) for _ in range(3)]
        await idle.ask(post(LIST, path=path))
        await busy.say(post(call, path=path))
        await stream.say(get(path=path))
        await stream.head()
        await called.acquire()

        it.interrupt()
        await until_ready(metrics, is_ready=False)
        assert await asyncio.to_thread(fetched, metrics, "/livez") == (200, "ok\n")
        last = await idle.ask(post(LIST, path=path))  # a balancer has sent it just now
        assert (last.status, b"connection: close" in last.head.lower()) == (200, True)
        assert await idle.rest() == b""
        await until(lambda: is_refused(it.port))
        await asyncio.sleep(3.5)  # longer than without the option

        may_answer.set()
        answered = await busy.answer()
        assert (answered.body, b"connection: close" in answered.head.lower()) == (ANSWER, True)
        assert (await stream.rest()).endswith(b"0\r\n\r\n")
        assert await it.exit_code() == 0


@asynccontextmanager
async def calling(
    host: str, home: Path, drain: str
) -> AsyncIterator[tuple[RunningTool, int, RawClient]]:
    """Run one with a call that is never answered."""
    async with (
        mcp_upstream(tools=TOOLS, respond=silent) as upstream,
        replica(host, upstream, home, drain) as (it, metrics),
        raw_client(it.port) as client,
    ):
        await client.say(post(call, path="/one/mcp" if host == "serve" else "/mcp"))
        await until(lambda: upstream.of("tools/call"))
        yield it, metrics, client


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("host", HOSTS)
async def test_what_is_not_answered_in_time_gets_an_error(host: str, tmp_path: Path) -> None:
    async with calling(host, tmp_path, "0") as (it, _, client):
        it.interrupt()
        assert b"The proxy is shutting down" in (await client.answer()).body
        assert await it.exit_code() == 0


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("host", HOSTS)
async def test_a_second_signal_waits_for_no_call(host: str, tmp_path: Path) -> None:
    async with calling(host, tmp_path, "99999") as (it, metrics, _):
        it.interrupt()
        await until_ready(metrics, is_ready=False)
        it.interrupt()
        assert await it.exit_code() == 0


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("value", ["soon", "-1", "1e3", "3s"])
def test_a_time_that_is_none_is_refused(value: str, tmp_path: Path) -> None:
    done = run("-u", "http://127.0.0.1:9/mcp", "-d", "x", f"--drain={value}", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "drain" in done.stderr
    assert "It must be a number of seconds, such as 30" in done.stderr


# SIGHUP asks for new lists, in front of a URL and of a command


@pytest.mark.parametrize("more", [(), ("-q",)], ids=["usual", "quiet"])
async def test_the_launcher_lists_anew_on_sighup(more: tuple[str, ...], tmp_path: Path) -> None:
    lists, port = Changing(), free_port()
    words = ("deny=^delete_", *more)
    async with filtering(LAUNCHER, tmp_path, *words, lists=lists, port=port) as on:
        assert await ask(port, "goes") == RESULT
        lists.names = ["stays", "comes"]
        on.it.interrupt(signal.SIGHUP)
        await on.it.says("took a new list.*new tool comes, tool goes is gone")
        assert await ask(port, "comes") == RESULT
        assert await ask(port, "goes") == not_found("goes")


async def test_a_command_is_asked_again_on_sighup(tmp_path: Path) -> None:
    async with launched("--deny", "^x", "--port", "0", "--", *upstream(), home=tmp_path) as it:
        await it.says("Saved")
        it.interrupt(signal.SIGHUP)
        await it.says("SIGHUP.*took a new list: its tools are the same")


def test_a_terminal_that_closes_ends_the_command_too(tmp_path: Path) -> None:
    """The command was not ended: one that ignores closed pipes ran for ever."""
    server = shlex.join(upstream())
    stubborn = f"echo $$ >> {shlex.quote(str(tmp_path / 'pids'))}; {server}; sleep 3600"
    words = ["-m", "mcp_tool_filter", "--deny", "^x", "--port", "0", "--", "sh", "-c", stubborn]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, *words])
    said = b""
    while b"Saved" not in said:
        said += os.read(terminal, 1000)
    [url] = re.findall(r"http://[^ ]+", said.decode())[:1]
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    body = asking("initialize", params='{"protocolVersion":"2025-11-25"}')
    urlopen(Request(url, body, headers), timeout=TIMEOUT).close()
    os.close(terminal)
    assert os.waitpid(child, 0)[0] == child
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert pids
    assert [pid for pid in pids if is_alive(pid)] == []
