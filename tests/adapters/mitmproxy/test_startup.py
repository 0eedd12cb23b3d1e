"""What a start refuses, and edits of the options while mitmproxy runs."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.mcp_upstream import RESULT, mcp_upstream, tool
from tests.proxy import SCRIPT
from tests.proxy import tool as mitmproxys
from tests.raw_client import post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer

FINE = post(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file"}}')

EDITS = """
import asyncio, logging
from mitmproxy import ctx, exceptions

async def edit():
    await asyncio.sleep(0.5)
    try:
        ctx.options.update(**{edit!r})
    except exceptions.OptionsError:
        logging.info("it was refused")
    await asyncio.sleep(0.2)
    logging.info("all is over")

def running():
    global task
    task = asyncio.create_task(edit())
"""


@pytest.mark.parametrize(
    "edit",
    [
        {"mode": ["reverse:tcp://127.0.0.1:1@127.0.0.1:0"]},
        {"mode": ["reverse:http://127.0.0.1:1@127.0.0.1:0"], "deny": ["(unclosed"]},
        {"mode": ["reverse:http://127.0.0.1:1@127.0.0.1:0"], "ignore_hosts": ["."]},
    ],
    ids=["mode", "mode and a pattern", "mode and a danger"],
)
async def test_a_refused_edit_of_the_mode_closes_no_listener(
    edit: dict[str, list[str]], tmp_path: Path
) -> None:
    """mitmproxy would close the old listeners, and open them again some 50 ms later."""
    script = tmp_path / "edits.py"
    script.write_text(EDITS.format(edit=edit))

    async with mcp_upstream(tools=[tool("read_file")]) as upstream:
        start = ["-s", SCRIPT, "-s", str(script), "--mode", f"reverse:{upstream.url}"]
        start += ["--set", "endpoint=/mcp", "--set", "deny=^wipe"]
        async with mitmproxys("mitmdump", *start, home=tmp_path) as it:
            await it.listening()
            await it.says("it was refused")
            await it.says("all is over")
            assert "stopped" not in it.stdout
            async with raw_client(it.port) as client:
                assert (await client.ask(FINE)).body == RESULT


async def test_the_same_warning_is_shown_once(tmp_path: Path) -> None:
    broken = [b'{"name":"broken"}'] * 7

    async with mcp_upstream(tools=[tool("read_file"), *broken]) as upstream:
        start = ["-s", SCRIPT, "--mode", f"reverse:{upstream.url}"]
        start += ["--set", "endpoint=/mcp", "--set", "deny=^wipe"]
        async with mitmproxys("mitmdump", *start, home=tmp_path) as it:
            await it.listening()
            await it.says("Warning: ")
            async with raw_client(it.port) as client:
                await client.ask(FINE)
            said = (it.stdout + it.stderr).splitlines()
            assert sum("without an object inputSchema" in line for line in said) == 1


async def test_a_mode_must_be_chosen(tmp_path: Path) -> None:
    """A user who forgets it would believe that the upstream is filtered."""
    async with mitmproxys("mitmdump", "-s", SCRIPT, home=tmp_path) as it:
        assert await it.exit_code() == 1
        assert "Error: There is no --mode\n--mode reverse:http://host:port filters" in it.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Error: There is no --mode\n"),
        (("--mode", "reverse:http://127.0.0.1:1", "--set", "deny=(a+)+"), "Error: Unsafe regex"),
    ],
    ids=["no mode", "a wrong option"],
)
async def test_a_start_that_must_fail_never_listens(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """mitmproxy would listen to every address. Here its port is taken: it would complain."""
    with socket.create_server(("", 0)) as taken:
        port = ("--listen-port", str(taken.getsockname()[1]))
        start = mitmproxys(
            "mitmdump", "-s", SCRIPT, *port, *arguments, home=tmp_path, listen_host=None
        )
        async with start as it:
            assert await it.exit_code() == 1
            assert it.stderr.startswith(said)
            assert "in use" not in it.stdout + it.stderr


async def test_a_call_under_way_is_answered_before_the_process_ends(tmp_path: Path) -> None:
    may_answer = asyncio.Event()

    async def slowly(_request: RawRequest, peer: Peer) -> None:
        await may_answer.wait()
        await peer.say(answer(RESULT))

    async with mcp_upstream(tools=[tool("read_file")], respond=slowly) as upstream:
        words = ["-s", SCRIPT, "--mode", f"reverse:{upstream.url}", "--set", "deny=^rm_"]
        async with mitmproxys("mitmdump", *words, "--set", "endpoint=/mcp", home=tmp_path) as it:
            found = await it.says(r"MCP tool filter: http://127.0.0.1:(\d+)")
            async with raw_client(int(found[1])) as client:
                await client.say(FINE)
                while not upstream.of("tools/call"):
                    await asyncio.sleep(0.01)
                it.interrupt()
                may_answer.set()
                assert (await client.answer()).body == RESULT
            assert await it.exit_code() == 0
