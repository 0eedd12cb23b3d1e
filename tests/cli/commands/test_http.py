"""The proxy as a person starts it: real processes, real sockets."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest

from mcp_tool_filter.cli.commands.demo import demo_upstream
from tests.cli.commands.proxying import (
    CALL,
    LIST,
    LOST,
    NOT_FOUND,
    TOOLS,
    ask,
    names_in,
    serving,
    silent,
)
from tests.cli.launched import launched
from tests.mcp_upstream import mcp_upstream
from tests.raw_client import post, raw_client
from tests.raw_upstream import Peer, free_port, raw_upstream


@pytest.mark.parametrize("more", [[], ["--record", "all.flow"]], ids=["sockets", "mitmproxy"])
async def test_an_exception_is_listed_and_called_as_if_no_pattern_matched(
    more: list[str], tmp_path: Path
) -> None:
    flags = ["--deny", "^r", "--except", "^read_file$,^none$", *more[:1]]
    flags += [str(tmp_path / one) for one in more[1:]]
    async with mcp_upstream(tools=TOOLS) as upstream, serving(upstream, tmp_path, *flags) as it:
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        assert (await ask(it.port, CALL % (1, b"rm_rf"))).body == NOT_FOUND
        assert (await ask(it.port, CALL % (1, b"read_file"))).status == 200
        assert len(upstream.of("tools/call")) == 1
        assert 'Warning: the pattern "^none$" matches no tool' in it.stderr
        assert '"^rm_": rm_rf' in it.stderr
        assert it.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_process_with_0(number: signal.Signals, tmp_path: Path) -> None:
    async with (
        mcp_upstream(tools=TOOLS, respond=silent) as upstream,
        serving(upstream, tmp_path) as it,
        raw_client(it.port) as client,
    ):
        await client.say(post(CALL % (1, b"read_file")))
        while not upstream.of("tools/call"):
            await asyncio.sleep(0.01)
        said = it.stderr
        it.interrupt(number)
        assert await it.exit_code() == 0
        after = it.stderr.removeprefix(said).splitlines()
        assert after[0].endswith("tools/call read_file: no answer, 78 B")
        assert after[1].startswith("Ran 0 min ")
        assert after[2].split() == ["1", "read_file"]
        assert len(after) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_during_the_fetch_ends_the_process_with_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    reached = asyncio.Event()

    async def script(peer: Peer) -> None:
        reached.set()
        await peer.left()

    async with (
        raw_upstream(script) as upstream,
        launched("--upstream", upstream.url, "--dashboard", "0", home=tmp_path) as it,
    ):
        await reached.wait()
        it.interrupt(number)
        assert await it.exit_code() == 0
        assert re.fullmatch(r"Dashboard: \S+\n", it.stderr)


async def test_a_lost_upstream_ends_the_process_with_1_after_all_waiting_clients_are_answered(
    tmp_path: Path,
) -> None:
    async with (
        mcp_upstream(tools=TOOLS, respond=silent) as upstream,
        serving(upstream, tmp_path) as it,
        raw_client(it.port) as client,
    ):
        await client.say(post(CALL % (1, b"read_file")))
        while not upstream.of("tools/call"):
            await asyncio.sleep(0.01)
        await upstream.raw.stop()
        assert (await client.answer()).body == LOST
        assert await it.exit_code() == 1
        text = "Error: Lost connection to upstream MCP\nShutting down proxy\n"
        assert it.stderr.endswith(f"upstream is lost: --keep-running\n{text}")


async def test_an_unreachable_upstream_is_an_error_of_two_lines(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with launched("--upstream", f"{url}/mcp", home=tmp_path) as it:
        assert await it.exit_code() == 1
        said = f"Error: Failed to connect to upstream MCP at {url}\nConnection refused\n"
        assert (it.stderr, it.stdout) == (said, "")


async def test_a_taken_port_is_an_error_before_the_upstream_is_asked(tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        port = str(upstream.raw.port)
        async with launched("-u", upstream.url, "-p", port, home=tmp_path) as it:
            assert await it.exit_code() == 1
            assert it.stderr == (
                f"Error: Cannot listen on 127.0.0.1:{port}\n"
                "Address already in use; --port 0 picks a free port\n"
            )
        assert upstream.raw.requests == []


async def test_quiet_prints_nothing_for_a_working_filter(tmp_path: Path) -> None:
    port = free_port()
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-qu", f"{upstream.url}/mcp", "--allow=e", "-p", str(port), home=tmp_path) as it,
    ):
        it.port = port
        await it.listening()
        assert names_in(await ask(port, LIST)) == ["read_file"]
        it.interrupt()
        assert await it.exit_code() == 0
        assert (it.stderr, it.stdout) == ("", "")


async def test_the_upstream_is_asked_once(tmp_path: Path) -> None:
    """By the launcher, while mitmproxy is being imported; the addon takes its answer."""

    async with mcp_upstream(tools=TOOLS) as upstream, serving(upstream, tmp_path):
        lists = [one for one in upstream.raw.requests if b'"tools/list"' in one.body]
        assert len(lists) == 1


async def test_header_values_are_sent_and_never_printed(tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        header = "Authorization: Bearer $TOKEN"
        words = ("-u", f"{upstream.url}/mcp?key=hunter3", "-H", header, "-vv")
        secret = {"TOKEN": "hunter2"}
        async with launched(*words, home=tmp_path, environment=secret) as it:
            await it.serving()
            await ask(it.port, CALL % (1, b"read_file"))
            async with raw_client(it.port) as client:
                await client.ask(post(b"{", path="/mcp?key=hunter3"))
            sent = [request.all("authorization") for request in upstream.raw.requests]
            assert all(values == ["Bearer hunter2"] for values in sent)
            it.interrupt()
            await it.exit_code()
            assert "hunter2" not in it.stdout + it.stderr
            assert "hunter3" not in it.stdout + it.stderr


async def test_a_wrong_path_is_answered_with_the_right_one(tmp_path: Path) -> None:
    async with demo_upstream() as upstream:
        wrong = upstream.url.replace("/mcp", "/wrong")
        async with launched("-u", wrong, "-d", "^file", home=tmp_path) as it:
            assert await it.exit_code() == 1
            assert it.stderr.startswith("Error: Failed to fetch tool list from upstream MCP\n")
            assert it.stderr.endswith(f"\nHint: MCP is at {upstream.url}\n")


async def test_the_list_timeout_can_be_set(
    tmp_path: Path,
) -> None:
    words = ["-d", "^rm", "--tool-list-timeout", "200"]
    async with (
        mcp_upstream(lists=lambda _request, _id: b"") as upstream,
        launched("-u", f"{upstream.url}/mcp", *words, home=tmp_path) as it,
    ):
        assert await it.exit_code() == 1
        assert it.stderr.endswith("Request timeout after 200ms\n")
