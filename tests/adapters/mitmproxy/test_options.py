"""Options at the start: ours, those of mitmproxy, and several listeners."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mitmproxy import options
from mitmproxy.addons import default_addons
from mitmproxy.master import Master
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import tflow

from mcp_tool_filter.adapters.mitmproxy import addon
from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.mitmproxy.options import (
    ConfigReader,
    Loopback,
    idle_options,
    keep_quiet_streams_alive,
    problem_in_options,
    was_set,
)
from mcp_tool_filter.adapters.upstream.fetch import fetch
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.cli.settings import read_settings
from mcp_tool_filter.conversation.memory import Fetched
from tests.adapters.mitmproxy.filtered import DELETE, READ, call, not_found
from tests.cli.launched import launched
from tests.hosts import HOSTS, MITMDUMP
from tests.mcp_upstream import RESULT, mcp_upstream, tool
from tests.proxy import SCRIPT, proxy
from tests.proxy import tool as mitmproxys
from tests.raw_client import post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, free_port, raw_upstream, until

TOOLS = [tool("read_file"), tool("rm_rf")]
FINE = post(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file"}}')


async def test_options_that_differ_from_the_checked_ones_are_checked_again(tmp_path: Path) -> None:
    """What is known of some flags says nothing about other ones."""
    known = read_settings(["-u", "http://localhost", "--deny", "^rm"], {})

    addon = ToolFilter(
        report=lambda _report: None, config_reader=ConfigReader(known.texts, known.config())
    )
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path, deny=["^read"]),
    ):
        await addon.proxy.ready.wait()
        [listener] = addon.proxy.listeners.values()
        assert list(listener.snapshot.allowed) == ["rm_rf"]


async def test_an_edit_keeps_the_allow_list_of_all_servers(tmp_path: Path) -> None:
    """It is no option of mitmproxy's: a change of any other lost it."""
    known = replace(read_settings(["-u", "x", "--allow", "r"], {}), allow_too=("^read",))
    addon = ToolFilter(
        report=lambda _report: None, config_reader=ConfigReader(known.texts, known.config())
    )
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path, allow=["r"]) as running,
    ):
        await addon.proxy.ready.wait()
        [listener] = addon.proxy.listeners.values()
        before = list(listener.snapshot.allowed)
        running.master.options.update(deny=["^nothing"])
        assert list(listener.snapshot.allowed) == before
        assert all(name.startswith("read") for name in before)


# mitmproxy's options: which are refused, which are changed, and what a user has set stays.


async def stock_options(**given: object) -> options.Options:
    """What mitmdump knows, and a user has set."""

    master = Master(options.Options())
    master.addons.add(*default_addons())
    master._legacy_log_events.uninstall()
    master.options.update(**given)
    return master.options


@pytest.mark.parametrize("name", ["ignore_hosts", "allow_hosts", "tcp_hosts", "udp_hosts"])
async def test_an_option_that_allows_a_bypass_is_refused(name: str) -> None:
    refusal = problem_in_options(await stock_options(**{name: ["localhost"]}))
    assert str(refusal).startswith(f"Error: Invalid value for {name}: ['localhost']\n")


async def test_the_user_hears_once_which_options_have_no_effect() -> None:
    options = await stock_options(stream_large_bodies="10m", websocket=False, modify_body=["/a/b"])
    assert problem_in_options(options) is None
    said = "Warning: stream_large_bodies, websocket have no effect"
    assert idle_options(options).startswith(said)
    assert idle_options(await stock_options(rawtcp=True)) == ""
    retired = await stock_options()
    retired.add_option("fast", Sequence[str], ("true",), "")
    assert idle_options(retired) == ""
    retired.update(fast=["false"])
    assert idle_options(retired).startswith("Warning: fast has no effect")


async def test_harmless_options_are_left_to_the_user() -> None:
    given = await stock_options(
        listen_port=None, rawtcp=True, show_ignored_hosts=True, map_remote=["|a|b"],
        modify_headers=["/~q/Authorization/Bearer x"], body_size_limit="1m", keep_host_header=True,
        http2=False,
    )  # fmt: skip
    assert problem_in_options(given) is None


async def test_quiet_streams_live_for_a_year() -> None:
    changed = await stock_options()
    keep_quiet_streams_alive(changed)
    assert changed.tcp_timeout == 365 * 24 * 3600
    assert changed.connection_strategy == "lazy"


async def test_a_users_setting_is_kept_even_if_it_is_the_default() -> None:
    default = (await stock_options()).tcp_timeout
    given = await stock_options(tcp_timeout=default, connection_strategy="eager")
    assert was_set(given, "tcp_timeout")
    assert not was_set(given, "listen_host")
    keep_quiet_streams_alive(given)
    assert (given.tcp_timeout, given.connection_strategy) == (default, "eager")
    given.update(mode=[MODE])  # there, it would close each connection
    keep_quiet_streams_alive(given)
    assert (given.tcp_timeout, given.connection_strategy) == (default, "lazy")


MODE = "reverse:http://127.0.0.1:1"


def test_remote_clients_from_before_the_rebind_are_refused() -> None:
    """mitmdump listens everywhere before it loads a script."""
    loopback = Loopback()
    loopback.load(options.Options())
    for peer, is_refused in (("127.0.0.1", False), ("::1", False), ("192.0.2.1", True)):
        client = tflow.tclient_conn()
        client.peername, client.proxy_mode = (peer, 1), ProxyMode.parse(MODE)
        client.error = None
        loopback.client_connected(client)
        assert bool(client.error) is is_refused


def own_address() -> str:
    """An address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
        return str(sock.getsockname()[0])


@pytest.mark.parametrize(
    ("address", "given", "is_served"),
    [
        ("", [], False),
        ("", ["--listen-host", ""], True),
        ("", ["--listen-host", "0.0.0.0"], True),
        ("@0.0.0.0:PORT", [], True),
    ],
)
async def test_only_the_loopback_is_listened_on_unless_the_user_names_an_address(
    address: str, given: list[str], is_served: bool, tmp_path: Path
) -> None:
    port = free_port()
    async with mcp_upstream(tools=TOOLS) as upstream:
        mode = f"reverse:{upstream.url}{address.replace('PORT', str(port))}"
        words = ["-s", SCRIPT, "--mode", mode, "--listen-port", str(port), "--set", "deny=^rm"]
        async with mitmproxys("mitmdump", *words, *given, home=tmp_path, listen_host=None) as it:
            await it.says("MCP tool filter: ")
            async with raw_client(port) as client:
                assert (await client.ask(FINE)).body == RESULT
            with socket.socket() as other:
                assert (other.connect_ex((own_address(), port)) == 0) is is_served


# One listener for each upstream, ready before the first client is served.


class TestConnections:
    async def test_requests_wait_until_the_tools_are_known(self, tmp_path: Path) -> None:
        gate = asyncio.Event()

        async def slowly(target: Target) -> Fetched:
            await gate.wait()
            return await fetch(target)

        async with (
            mcp_upstream(tools=[READ, DELETE]) as upstream,
            proxy(
                ToolFilter(fetch=slowly), to=upstream.url, home=tmp_path, deny=["^delete_"]
            ) as it,
            raw_client(it.port) as client,
        ):
            await client.say(post(call("delete_file")))
            await asyncio.sleep(0.05)
            gate.set()
            assert (await client.answer()).body == not_found("delete_file")
            assert upstream.asked == []


# What a start refuses, and edits of the options while mitmproxy runs.

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


@pytest.mark.rest(but=1)
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


@pytest.mark.rest(but=1)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Error: There is no --mode\n--mode reverse:http://host:port filters"),
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


@pytest.mark.parametrize("host", HOSTS)
async def test_a_client_that_comes_or_leaves_during_the_start_does_no_harm(
    host: str, tmp_path: Path
) -> None:
    """It waits until the tools are known. (mitmproxy said that it has crashed.)"""
    may_answer, port = asyncio.Event(), free_port()

    async def script(peer: Peer) -> None:
        await peer.request()
        await may_answer.wait()
        peer.close()

    async with raw_upstream(script) as slow:
        mode = ("-s", SCRIPT, "--mode", f"reverse:{slow.url}@{port}", "--set", "deny=^rm_")
        flags = ("-u", slow.url, "--deny", "^rm_", "--port", str(port))
        is_mitmdump = host == MITMDUMP
        async with (
            mitmproxys(host, *mode, home=tmp_path)
            if is_mitmdump
            else launched(*flags, home=tmp_path)
        ) as it:
            it.port = port
            await slow.asked(1)
            await it.listening()
            async with raw_client(port) as client:
                await client.say(FINE)
            may_answer.set()
            assert await it.exit_code() == 1
            assert "crashed" not in it.stderr + it.stdout


# Clients that stay silent


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("reverse:{}", b""),
        ("reverse:{}", b"\x16\x03\x01\x02\0\x01"),
        ("regular", b""),
        ("regular", b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n"),
    ],
    ids=["nothing", "half a TLS handshake", "nothing to a proxy", "nothing in a tunnel"],
)
async def test_a_client_that_stays_silent_is_disconnected(
    tmp_path: Path, mode: str, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine does not know it yet, and mitmproxy would wait for a year."""
    monkeypatch.setattr(addon, "_SECONDS_BETWEEN_TICKS", 0.02)
    tool_filter = ToolFilter()
    async with (
        mcp_upstream(tools=[READ, DELETE]) as upstream,
        proxy(tool_filter, to=[mode.format(upstream.url)], home=tmp_path) as running,
        raw_client(running.port) as client,
        raw_client(running.port) as other,
    ):
        await client.say(said)
        if said.startswith(b"CONNECT"):
            assert b" 200 " in await client.head()
        await other.say(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nslowly")
        seats = tool_filter.proxy.crowd.seats
        await until(lambda: len(seats) >= 2)
        clock = seats.clock
        monkeypatch.setattr(seats, "clock", lambda: clock() + 121)
        async with asyncio.timeout(TIMEOUT):
            assert await client.reader.read() == b""
        assert not other.reader.at_eof()  # the engine waits for its body
