"""What a person reads, and the exit code, when it cannot start or cannot go on."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.mcp_upstream import mcp_upstream, tool
from tests.proxy import SCRIPT, RunningTool
from tests.proxy import tool as started
from tests.raw_client import post, raw_client
from tests.raw_upstream import Peer, RawRequest, until

TOOLS = ("mitmdump", "mitmweb", "mitmproxy")
CALL = b'{"jsonrpc":"2.0","id":"%d","method":"tools/call","params":{"name":"read_file"}}'
LOST = b'{"jsonrpc":"2.0","id":"%d","error":{"code":-32000,"message":"Upstream connection lost"}}'


def running(
    name: str, home: Path, url: str, *options: str
) -> AbstractAsyncContextManager[RunningTool]:
    words = ("-s", SCRIPT, "--mode", f"reverse:{url}", *(f"--set={one}" for one in options))
    return started(name, *words, home=home)


async def end(name: str, home: Path, *options: str) -> tuple[int, str]:
    """The exit code, and what was said on stderr, if nobody is there."""
    async with running(name, home, "http://127.0.0.1:1", *options) as it:
        return await it.exit_code(), it.stderr.replace("\r\n", "\n")


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("deny=^[a-z", 'Invalid regex pattern in deny list: "^[a-z"\n'
         "Pattern must be valid JavaScript regex"),
        ("deny=(a+)+", 'Unsafe regex pattern detected: "(a+)+"\n'
         "Pattern could cause catastrophic backtracking"),
        ("deny=^x$", "Failed to connect to upstream MCP at http://127.0.0.1:1\nConnection refused"),
        ("dney=x", "Unknown option: dney\nDid you mean deny?"),
        ("new_tools=never",
         "Invalid value for new_tools: 'never'\nIt must be hide or judge"),
        ("tools_list=cache", "There is no option tools_list any more\n"
         "Leave it out: the filter asks the upstream whenever its snapshot may be wrong"),
    ],
)  # fmt: skip
async def test_a_failed_start_says_why_in_two_lines(
    name: str, option: str, text: str, tmp_path: Path
) -> None:
    code, stderr = await end(name, tmp_path, option)
    assert code == 1
    if name == "mitmproxy":  # it draws on its terminal, which is its stderr too
        assert stderr.rstrip().endswith(f"Error: {text}")
    else:
        assert stderr == f"Error: {text}\n"


async def test_a_configuration_file_that_overrides_a_flag_stops_the_start(
    tmp_path: Path,
) -> None:
    """mitmproxy would let config.yaml win over --set."""
    (tmp_path / "config.yaml").write_text("deny: ['^other']\n")
    code, stderr = await end("mitmdump", tmp_path, "deny=^mine")
    assert (code, stderr.split("\n")[0]) == (1, "Error: Invalid value for --set deny: '^mine'")
    assert "config.yaml" in stderr.split("\n")[1]


@pytest.mark.parametrize("name", TOOLS)
async def test_a_lost_upstream_ends_the_process_after_all_waiting_clients_are_answered(
    name: str, tmp_path: Path
) -> None:
    async def silent(_request: RawRequest, peer: Peer) -> None:
        await peer.left()

    async with (
        mcp_upstream(tools=[tool("read_file")], respond=silent) as upstream,
        running(name, tmp_path, upstream.url, "endpoint=/mcp") as it,
        raw_client(await it.listening()) as one,
        raw_client(it.port) as other,
    ):
        await one.say(post(CALL % 1))
        await other.say(post(CALL % 2))
        await until(lambda: len(upstream.of("tools/call")) == 2)
        await upstream.raw.stop()
        got = [(await client.answer()).body for client in (one, other)]
        code, stderr = await it.exit_code(), it.stderr.replace("\r\n", "\n")
    assert got == [LOST % 1, LOST % 2]
    assert code == 1
    assert stderr.rstrip().endswith("Error: Lost connection to upstream MCP\nShutting down proxy")
