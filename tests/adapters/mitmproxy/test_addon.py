"""The hooks in a real mitmproxy: options that are edited while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError

from mcp_tool_filter.adapters.mitmproxy import addon
from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import (
    DELETE,
    READ,
    call,
    filtered,
    not_found,
)
from tests.mcp_upstream import RESULT, mcp_upstream
from tests.proxy import proxy
from tests.raw_client import raw_client
from tests.raw_upstream import TIMEOUT


class TestEditedOptions:
    """mitmweb and the console let a user edit options while we run."""

    async def test_other_patterns_take_effect_at_once(self, tmp_path: Path) -> None:
        async with filtered(tmp_path) as between:
            assert (await between.ask(call("read_file"))).body == RESULT
            ctx.options.update(deny=["^read_"])
            assert (await between.ask(call("read_file"))).body == not_found("read_file")
            assert (await between.ask(call("delete_file"))).body == RESULT

    @pytest.mark.parametrize(
        "bad", [{"deny": ["("]}, {"deny": ["(a+)+"]}, {"tools_list": ["x"]}, {"fail_fast": ["?"]}]
    )
    async def test_a_bad_value_is_refused_and_the_old_filter_is_kept(
        self, tmp_path: Path, bad: dict[str, list[str]]
    ) -> None:
        async with filtered(tmp_path) as between:
            with pytest.raises(OptionsError, match=r"^Error: "):
                ctx.options.update(**bad)
            assert (await between.ask(call("delete_file"))).body == not_found("delete_file")

    async def test_an_option_that_would_allow_a_bypass_is_refused(self, tmp_path: Path) -> None:
        async with filtered(tmp_path) as between:
            with pytest.raises(OptionsError, match="ignore_hosts"):
                ctx.options.update(ignore_hosts=["localhost"])
            assert (await between.ask(call("delete_file"))).body == not_found("delete_file")


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
        async with asyncio.timeout(TIMEOUT):
            while len(seats) < 2:
                await asyncio.sleep(0.01)
        clock = seats.clock
        monkeypatch.setattr(seats, "clock", lambda: clock() + 121)
        async with asyncio.timeout(TIMEOUT):
            assert await client.reader.read() == b""
        assert not other.reader.at_eof()  # the engine waits for its body
