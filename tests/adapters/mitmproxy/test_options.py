"""The configuration is checked once, however often it is requested."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.mitmproxy.options import ConfigReader
from mcp_tool_filter.cli.commands.in_mitmproxy import leave, prepare
from mcp_tool_filter.cli.settings import read_settings
from mcp_tool_filter.policy.patterns import Pattern, parse_pattern
from tests.mcp_upstream import mcp_upstream, tool
from tests.proxy import proxy

TOOLS = [tool("read_file"), tool("rm_rf")]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every pattern, each time it is parsed."""
    seen: list[str] = []

    def parse_and_note(text: str, **given: Any) -> Pattern:
        if text != "^hidden_tool$":  # of the test of mitmproxy at the start
            seen.append(text)
        return parse_pattern(text, **given)

    monkeypatch.setattr("mcp_tool_filter.policy.config.parse_pattern", parse_and_note)
    return seen


async def test_the_launcher_passes_its_checked_configuration_on(
    parsed: list[str], tmp_path: Path
) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        words = ["-u", f"{upstream.url}/mcp", "-d^rm", "--allow", "e", "-p0", "--keep-running"]
        settings = read_settings([*words, "--set", f"confdir={tmp_path}"], {})
        settings.config()
        ready = asyncio.Event()
        master = await prepare(settings, lambda _report: ready.set())
        running = asyncio.create_task(master.run())
        await asyncio.wait_for(ready.wait(), 20)
        await leave(master)
        await running
    assert parsed == ["^rm", "e"]


async def test_the_configuration_is_checked_once_and_after_each_edit(
    parsed: list[str], tmp_path: Path
) -> None:
    addon = ToolFilter(report=lambda _report: None)
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path, deny=["^rm"]) as running,
    ):
        await addon.proxy.ready.wait()
        running.master.options.update(tools_list=["auto"])
        assert parsed == ["^rm"]
        running.master.options.update(deny=["^rm", "^read"])
        assert parsed == ["^rm", "^rm", "^read"]


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
