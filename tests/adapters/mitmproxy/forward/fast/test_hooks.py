"""Hooks run quickly, and as in mitmproxy: in order, awaited, on addons that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from mitmproxy.exceptions import AddonHalt
from mitmproxy.hooks import ConfigureHook, UpdateHook
from mitmproxy.log import AddLogHook, LogEntry
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy.layers.http._hooks import HttpRequestHook
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.mitmproxy.forward.fast.hooks import QuickAddonManager, make_quick
from tests.adapters.mitmproxy.forward.fast.something import SomethingHook


@dataclass
class Heard:
    name: str
    log: list[str]
    raises: Exception | None = None
    halts: bool = field(default=False)

    def something(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if self.raises:
            raise self.raises
        if self.halts:
            raise AddonHalt


@dataclass
class HeardLater:
    name: str
    log: list[str]

    async def something(self, what: str) -> None:
        await asyncio.sleep(0)
        self.log.append(f"{self.name} {what}")


@dataclass
class Deaf:
    name: str = "deaf"


@dataclass
class Group:
    addons: list[object]
    name: str = "group"


async def triggered(*rounds: list[object]) -> None:
    """Trigger the hook once for each chain of addons."""

    master = Master(Options())
    master._legacy_log_events.uninstall()
    manager = QuickAddonManager(master)
    for number, chain in enumerate(rounds):
        manager.chain[:] = chain
        await manager.trigger_event(SomethingHook(str(number)))
        await manager.trigger_event(UpdateHook([]))


async def test_all_addons_with_the_hook_are_run_in_order_and_awaited() -> None:
    log: list[str] = []
    await triggered([Heard("a", log), Deaf(), HeardLater("b", log), Heard("c", log)])
    assert log == ["a 0", "b 0", "c 0"]


async def test_addons_can_be_added_and_removed() -> None:
    log: list[str] = []
    a, b = Heard("a", log), Heard("b", log)
    await triggered([a], [a, b], [b])
    assert log == ["a 0", "a 1", "b 1", "b 2"]


async def test_an_error_of_one_addon_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    await triggered([Heard("a", log, raises=ValueError("broken")), Heard("b", log)])
    assert log == ["a 0", "b 0"]
    assert "Addon error: broken" in caplog.text


async def test_one_addon_can_halt_the_chain() -> None:
    log: list[str] = []
    await triggered([Heard("a", log, halts=True), Heard("b", log)])
    assert log == ["a 0"]


async def test_a_hook_that_appears_after_an_edit_of_the_options_is_run() -> None:
    log: list[str] = []
    deaf: Any = Deaf()

    master = Master(Options())
    master._legacy_log_events.uninstall()
    manager = QuickAddonManager(master)
    manager.chain[:] = [deaf]
    await manager.trigger_event(SomethingHook("0"))
    deaf.something = log.append
    manager.trigger(ConfigureHook(set()))
    await manager.trigger_event(SomethingHook("1"))
    assert log == ["1"]


class Counted:
    """Counts how often its hook is looked up."""

    name = "counted"

    def __init__(self) -> None:
        self.looks = 0

    @property
    def something(self) -> Callable[[str], None]:
        self.looks += 1
        return lambda what: None


async def test_a_log_line_does_not_cause_a_search_of_all_addons() -> None:
    """mitmdump logs a line for each event stream."""
    counted = Counted()
    manager = QuickAddonManager(Master(Options()))
    manager.master._legacy_log_events.uninstall()
    manager.chain[:] = [counted]
    await manager.trigger_event(SomethingHook("0"))
    before = counted.looks
    manager.trigger(AddLogHook(LogEntry("a line", "info")))
    await manager.trigger_event(SomethingHook("1"))
    assert counted.looks == before
    manager.trigger(ConfigureHook(set()))
    await manager.trigger_event(SomethingHook("2"))
    assert counted.looks > before


async def test_addons_that_read_the_log_get_every_line() -> None:
    log: list[str] = []
    reader: Any = Deaf()
    reader.add_log = lambda entry: log.append(entry.msg)
    manager = QuickAddonManager(Master(Options()))
    manager.master._legacy_log_events.uninstall()
    manager.chain[:] = [Deaf(), reader]
    manager.trigger(AddLogHook(LogEntry("one", "info")))
    manager.trigger(AddLogHook(LogEntry("two", "info")))
    assert log == ["one", "two"]


async def test_a_group_runs_its_current_addons() -> None:
    """A script that is loaded again is another addon in the same group."""
    log: list[str] = []
    group = Group([Heard("a", log)])

    master = Master(Options())
    master._legacy_log_events.uninstall()
    manager = QuickAddonManager(master)
    manager.chain[:] = [group]
    await manager.trigger_event(SomethingHook("0"))
    group.addons = [Heard("b", log)]
    await manager.trigger_event(SomethingHook("1"))
    assert log == ["a 0", "b 1"]


@dataclass
class Updated:
    name: str
    log: list[str]

    def update(self, flows: list[object]) -> None:
        self.log.append(f"{self.name} {len(flows)}")


@pytest.mark.parametrize("chain", [[], [Deaf()], [Group([])]])
async def test_addons_that_watch_flows_are_told_of_every_change(chain: list[object]) -> None:
    """mitmweb's view lives from that."""
    log: list[str] = []

    master = Master(Options())
    master._legacy_log_events.uninstall()
    manager = QuickAddonManager(master)
    manager.chain[:] = [*chain, Updated("a", log)]
    await manager.handle_lifecycle(HttpRequestHook(tflow()))
    await manager.handle_lifecycle(SomethingHook("no flow"))
    assert log == ["a 1"]


async def test_hooks_that_finish_at_once_leave_nothing_to_await() -> None:
    log: list[str] = []

    master = Master(Options())
    master._legacy_log_events.uninstall()
    manager = QuickAddonManager(master)
    manager.chain[:] = [Heard("a", log)]
    assert manager.begin(SomethingHook("0")) is None
    manager.chain[:] = [HeardLater("b", log), Heard("c", log)]
    rest = manager.begin(SomethingHook("1"))
    assert rest is not None
    assert log == ["a 0"]
    await rest
    assert log == ["a 0", "b 1", "c 1"]


async def test_a_manager_in_use_keeps_its_addons() -> None:
    log: list[str] = []

    master = Master(Options())
    master._legacy_log_events.uninstall()
    master.addons.chain[:] = [Heard("a", log)]
    make_quick(master.addons)
    assert isinstance(master.addons, QuickAddonManager)
    await master.addons.trigger_event(SomethingHook("0"))
    assert log == ["a 0"]
