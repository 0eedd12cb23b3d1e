"""Any chain of addons, however odd, is run as mitmproxy's own manager runs it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from itertools import count

from hypothesis import example, given, settings
from hypothesis import strategies as st
from mitmproxy.addonmanager import AddonManager
from mitmproxy.exceptions import AddonHalt, OptionsError
from mitmproxy.master import Master
from mitmproxy.options import Options

from mcp_tool_filter.adapters.mitmproxy.forward.fast.hooks import QuickAddonManager
from tests.adapters.mitmproxy.forward.fast.something import SomethingHook


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


@settings(max_examples=150)
@given(st.lists(_shapes, max_size=5))
@example([(_NoFunction, []), (_Plain, [])])
@example([(_Deaf, [(_Raising, []), (_Plain, [])]), (_Plain, [])])
def test_any_chain_of_addons_runs_like_in_mitmproxy(shapes: list[_Shape]) -> None:
    assert _what_happens(QuickAddonManager, shapes) == _what_happens(AddonManager, shapes)
