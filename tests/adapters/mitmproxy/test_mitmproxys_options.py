"""mitmproxy's options: which are refused, which are changed, and what a user has set stays."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from mitmproxy import options
from mitmproxy.addons import default_addons
from mitmproxy.master import Master

from mcp_tool_filter.adapters.mitmproxy.options import (
    idle_options,
    keep_quiet_streams_alive,
    problem_in_options,
    was_set,
)
from tests.proxy import REPOSITORY, tool
from tests.raw_client import raw_client
from tests.raw_upstream import free_port


async def stock_options(**given: object) -> options.Options:
    """What mitmdump knows, and a user has set."""

    master = Master(options.Options())
    master.addons.add(*default_addons())
    master._legacy_log_events.uninstall()
    master.options.update(**given)
    return master.options


async def test_mitmproxys_own_defaults_are_not_refused() -> None:
    assert problem_in_options(await stock_options()) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ignore_hosts", ["localhost"]),
        ("allow_hosts", ["example"]),
        ("tcp_hosts", ["localhost"]),
        ("udp_hosts", ["localhost"]),
    ],
)
async def test_an_option_that_allows_a_bypass_is_refused(name: str, value: object) -> None:
    refusal = problem_in_options(await stock_options(**{name: value}))
    assert refusal is not None
    assert str(refusal).startswith(f"Error: Invalid value for {name}: {value!r}\n")


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rawtcp", True),
        ("show_ignored_hosts", True),
        ("map_remote", ["|a|b"]),
        ("modify_headers", ["/~q/Authorization/Bearer x"]),
        ("body_size_limit", "1m"),
        ("keep_host_header", True),
        ("http2", False),
    ],
)
async def test_harmless_options_are_left_to_the_user(name: str, value: object) -> None:
    assert problem_in_options(await stock_options(**{name: value})) is None


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


ADDON = """
import sys
sys.path.insert(0, {path!r})
import logging
from mitmproxy import ctx, http
from mcp_tool_filter.adapters.mitmproxy.options import Loopback

class Filter:
    def __init__(self):
        self.loopback = Loopback()

    def load(self, loader):
        self.loopback.load(ctx.options)

    def client_connected(self, client):
        self.loopback.client_connected(client)

    async def running(self):
        if {rebind}:
            await self.loopback.rebind()
        logging.info("ready")

    def request(self, flow):
        flow.response = http.Response.make(200, b"served")

addons = [Filter()]
"""


def script(home: Path, *, rebind: bool = True) -> str:
    path = home / "script.py"
    path.write_text(ADDON.format(path=str(REPOSITORY / "addon"), rebind=rebind))
    return str(path)


def own_address() -> str:
    """An address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but the loopback's")
        return str(sock.getsockname()[0])


async def served(host: str, port: int) -> str:
    try:
        async with raw_client(port, host=host) as client:
            await client.say(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return "served" if b"served" in await client.rest() else "hung up on"
    except ConnectionRefusedError:
        return "refused"
    except ConnectionError:
        return "hung up on"


async def outcome(home: Path, mode: str, *arguments: str, rebind: bool = True) -> tuple[str, str]:
    """What a local client and a remote one get."""
    port = free_port()
    loaded = script(home, rebind=rebind)
    start = ["-s", loaded, "--mode", mode.replace("PORT", str(port)), *arguments]
    more = ["--set", "connection_strategy=lazy", "--listen-port", str(port)]
    async with tool("mitmdump", *start, *more, home=home, listen_host=None) as running:
        await running.says("ready")
        return await served("127.0.0.1", port), await served(own_address(), port)


MODE = "reverse:http://127.0.0.1:1"
ANYWHERE = "reverse:http://127.0.0.1:1@0.0.0.0:PORT"


async def test_only_the_loopback_is_listened_on(tmp_path: Path) -> None:
    assert await outcome(tmp_path, MODE) == ("served", "refused")


async def test_a_connection_from_before_the_rebind_is_closed(tmp_path: Path) -> None:
    """mitmdump listens everywhere before it loads a script."""
    assert await outcome(tmp_path, MODE, rebind=False) == ("served", "hung up on")


@pytest.mark.parametrize("address", ["", "0.0.0.0"])
async def test_listening_on_every_address_can_be_chosen(address: str, tmp_path: Path) -> None:
    given = ("--listen-host", address)
    assert await outcome(tmp_path, MODE, *given) == ("served", "served")


async def test_an_address_named_in_a_mode_is_used(tmp_path: Path) -> None:
    assert await outcome(tmp_path, ANYWHERE) == ("served", "served")
