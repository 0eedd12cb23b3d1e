"""Addons are asked quickly, and exactly as mitmproxy would ask them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mitmproxy.addonmanager import AddonManager
from mitmproxy.exceptions import AddonHalt, OptionsError
from mitmproxy.hooks import ConfigureHook, Hook, UpdateHook
from mitmproxy.log import AddLogHook, LogEntry
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy.layers.http._hooks import HttpRequestHook
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.mitmproxy.fast.hooks import QuickAddonManager, make_quick


@dataclass
class SomethingHook(Hook):
    what: Any


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


async def test_all_who_have_the_hook_are_asked_in_order_and_awaited() -> None:
    log: list[str] = []
    await triggered([Heard("a", log), Deaf(), HeardLater("b", log), Heard("c", log)])
    assert log == ["a 0", "b 0", "c 0"]


async def test_who_comes_later_is_asked_later_and_who_has_gone_no_more() -> None:
    log: list[str] = []
    a, b = Heard("a", log), Heard("b", log)
    await triggered([a], [a, b], [b])
    assert log == ["a 0", "a 1", "b 1", "b 2"]


async def test_an_error_of_one_does_not_keep_it_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    await triggered([Heard("a", log, raises=ValueError("broken")), Heard("b", log)])
    assert log == ["a 0", "b 0"]
    assert "Addon error: broken" in caplog.text


async def test_one_can_halt_the_chain() -> None:
    log: list[str] = []
    await triggered([Heard("a", log, halts=True), Heard("b", log)])
    assert log == ["a 0"]


# What an addon can be to a hook. Each is a class whose instances are such addons.
class _Addon:
    def __init__(self, number: int, log: list[str], held: list[object]) -> None:
        self.name = f"addon{number}"
        self.log = log
        if held:
            self.addons = held

    def said(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")


class _Plain(_Addon):
    def something(self, what: str) -> None:
        self.said(what)


class _Async(_Addon):
    async def something(self, what: str) -> None:
        self.said(f"{what} begins")
        await asyncio.sleep(0)
        self.said(f"{what} ends")


class _Raising(_Addon):
    def something(self, what: str) -> None:
        self.said(what)
        raise ValueError(self.name)


class _RaisingLater(_Addon):
    async def something(self, what: str) -> None:
        await asyncio.sleep(0)
        self.said(what)
        raise ValueError(self.name)


class _Halting(_Addon):
    def something(self, what: str) -> None:
        self.said(what)
        raise AddonHalt


class _HaltingLater(_Addon):
    async def something(self, what: str) -> None:
        self.said(what)
        raise AddonHalt


class _Refusing(_Addon):
    def something(self, what: str) -> None:
        self.said(what)
        raise OptionsError(self.name)


class _NoFunction(_Addon):
    something = "text"


class _Empty(_Addon):
    something = None


class _Module(_Addon):
    something = asyncio


class _RaisingProperty(_Addon):
    @property
    def something(self) -> object:
        raise RuntimeError(self.name)


class _Deaf(_Addon):
    pass


_KINDS = (
    _Plain, _Async, _Raising, _RaisingLater, _Halting, _HaltingLater, _Refusing, _NoFunction,
    _Empty, _Module, _RaisingProperty, _Deaf,
)  # fmt: skip
type _Shape = tuple[type[_Addon], list[_Shape]]
_leaves: st.SearchStrategy[_Shape] = st.tuples(st.sampled_from(_KINDS), st.just([]))
_shapes = st.recursive(
    _leaves,
    lambda shapes: st.tuples(st.sampled_from(_KINDS), st.lists(shapes, max_size=3)),
    max_leaves=6,
)


def _built(shapes: list[_Shape], log: list[str], numbers: Iterator[int]) -> list[object]:
    return [kind(next(numbers), log, _built(held, log, numbers)) for kind, held in shapes]


def _what_happens(kind: type[AddonManager], shapes: list[_Shape]) -> list[str]:
    """Trigger a hook twice; return what was called, logged and raised."""
    log: list[str] = []

    class Logged(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.append(record.getMessage())

    async def main() -> None:
        master = Master(Options())
        master._legacy_log_events.uninstall()
        manager = kind(master)
        manager.chain[:] = _built(shapes, log, count())
        for what in ("first", "second"):
            try:
                await manager.trigger_event(SomethingHook(what))
            except Exception as error:
                log.append(f"raised {error!r}")

    heard = Logged()
    logging.getLogger("mitmproxy.addonmanager").addHandler(heard)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("mitmproxy.addonmanager").removeHandler(heard)
    return [re.sub(r" at 0x[0-9a-f]+", "", line) for line in log]


@settings(max_examples=150, deadline=None)
@given(st.lists(_shapes, max_size=5))
@example([(_NoFunction, []), (_Plain, [])])
@example([(_Deaf, [(_Raising, []), (_Plain, [])]), (_Plain, [])])
def test_any_chain_of_addons_is_run_as_mitmproxy_runs_it(shapes: list[_Shape]) -> None:
    assert _what_happens(QuickAddonManager, shapes) == _what_happens(AddonManager, shapes)


async def test_a_function_that_appears_with_an_edit_of_the_options_is_run() -> None:
    log: list[str] = []
    deaf: Any = Deaf()

    async def main() -> None:
        master = Master(Options())
        master._legacy_log_events.uninstall()
        manager = QuickAddonManager(master)
        manager.chain[:] = [deaf]
        await manager.trigger_event(SomethingHook("0"))
        deaf.something = log.append
        manager.trigger(ConfigureHook(set()))
        await manager.trigger_event(SomethingHook("1"))

    await main()
    assert log == ["1"]


class Counted:
    """Counts how often somebody looks for its hook."""

    name = "counted"

    def __init__(self) -> None:
        self.looks = 0

    @property
    def something(self) -> Callable[[str], None]:
        self.looks += 1
        return lambda what: None


async def test_a_log_line_does_not_make_us_search_all_addons_again() -> None:
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


async def test_addons_that_read_the_log_get_each_line() -> None:
    log: list[str] = []
    reader: Any = Deaf()
    reader.add_log = lambda entry: log.append(entry.msg)
    manager = QuickAddonManager(Master(Options()))
    manager.master._legacy_log_events.uninstall()
    manager.chain[:] = [Deaf(), reader]
    manager.trigger(AddLogHook(LogEntry("one", "info")))
    manager.trigger(AddLogHook(LogEntry("two", "info")))
    assert log == ["one", "two"]


async def test_those_in_a_group_are_asked_whoever_they_are_just_now() -> None:
    """A script that is loaded again is another addon in the same group."""
    log: list[str] = []
    group = Group([Heard("a", log)])

    async def main() -> None:
        master = Master(Options())
        master._legacy_log_events.uninstall()
        manager = QuickAddonManager(master)
        manager.chain[:] = [group]
        await manager.trigger_event(SomethingHook("0"))
        group.addons = [Heard("b", log)]
        await manager.trigger_event(SomethingHook("1"))

    await main()
    assert log == ["a 0", "b 1"]


@dataclass
class Updated:
    name: str
    log: list[str]

    def update(self, flows: list[object]) -> None:
        self.log.append(f"{self.name} {len(flows)}")


@pytest.mark.parametrize("chain", [[], [Deaf()], [Group([])]])
async def test_who_wants_to_know_of_every_change_of_a_flow_is_told(chain: list[object]) -> None:
    """mitmweb's view lives from that."""
    log: list[str] = []

    async def main() -> None:
        master = Master(Options())
        master._legacy_log_events.uninstall()
        manager = QuickAddonManager(master)
        manager.chain[:] = [*chain, Updated("a", log)]
        await manager.handle_lifecycle(HttpRequestHook(tflow()))
        await manager.handle_lifecycle(SomethingHook("no flow"))

    await main()
    assert log == ["a 1"]


async def test_what_is_through_at_once_leaves_nothing_to_be_awaited() -> None:
    log: list[str] = []

    async def main() -> None:
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

    await main()
    assert log == ["a 0", "b 1", "c 1"]


async def test_a_manager_in_use_keeps_its_addons() -> None:
    log: list[str] = []

    async def main() -> None:
        master = Master(Options())
        master._legacy_log_events.uninstall()
        master.addons.chain[:] = [Heard("a", log)]
        make_quick(master.addons)
        assert isinstance(master.addons, QuickAddonManager)
        await master.addons.trigger_event(SomethingHook("0"))

    await main()
    assert log == ["a 0"]
