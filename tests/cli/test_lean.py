"""mitmproxy with less in it still is mitmproxy."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.exceptions import AddonHalt
from mitmproxy.hooks import Hook, UpdateHook
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy.layers.http._hooks import HttpRequestHook
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.cli.lean import QuickAddonManager, QuickOptions
from tests.cli.launched import surroundings

HEAVY = ("flask", "ldap3", "tornado", "urwid", "mitmproxy.addons.onboarding")


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


def triggered(*rounds: list[object]) -> None:
    """Trigger the hook once for each chain of addons."""

    async def main() -> None:
        master = Master(Options())
        master._legacy_log_events.uninstall()
        manager = QuickAddonManager(master)
        for number, chain in enumerate(rounds):
            manager.chain[:] = chain
            await manager.trigger_event(SomethingHook(str(number)))
            await manager.trigger_event(UpdateHook([]))

    asyncio.run(main())


def test_all_who_have_the_hook_are_asked_in_order_and_awaited() -> None:
    log: list[str] = []
    triggered([Heard("a", log), Deaf(), HeardLater("b", log), Heard("c", log)])
    assert log == ["a 0", "b 0", "c 0"]


def test_who_comes_later_is_asked_later_and_who_has_gone_no_more() -> None:
    log: list[str] = []
    a, b = Heard("a", log), Heard("b", log)
    triggered([a], [a, b], [b])
    assert log == ["a 0", "a 1", "b 1", "b 2"]


def test_an_error_of_one_does_not_keep_it_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    triggered([Heard("a", log, raises=ValueError("broken")), Heard("b", log)])
    assert log == ["a 0", "b 0"]
    assert "Addon error: broken" in caplog.text


def test_one_can_halt_the_chain() -> None:
    log: list[str] = []
    triggered([Heard("a", log, halts=True), Heard("b", log)])
    assert log == ["a 0"]


def test_those_in_a_group_are_asked_whoever_they_are_just_now() -> None:
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

    asyncio.run(main())
    assert log == ["a 0", "b 1"]


@dataclass
class Updated:
    name: str
    log: list[str]

    def update(self, flows: list[object]) -> None:
        self.log.append(f"{self.name} {len(flows)}")


@pytest.mark.parametrize("chain", [[], [Deaf()], [Group([])]])
def test_who_wants_to_know_of_every_change_of_a_flow_is_told(chain: list[object]) -> None:
    """mitmweb's view lives from that."""
    log: list[str] = []

    async def main() -> None:
        master = Master(Options())
        master._legacy_log_events.uninstall()
        manager = QuickAddonManager(master)
        manager.chain[:] = [*chain, Updated("a", log)]
        await manager.handle_lifecycle(HttpRequestHook(tflow()))
        await manager.handle_lifecycle(SomethingHook("no flow"))

    asyncio.run(main())
    assert log == ["a 1"]


def test_an_option_that_could_be_changed_in_place_is_a_copy() -> None:
    options = QuickOptions()
    options.set("mode=regular", "listen_port=9")
    options.mode.append("changed")
    assert (options.mode, options.listen_port, options.listen_host) == (["regular"], 9, "")
    assert not hasattr(options, "no_such_option")


def test_what_no_filter_needs_is_not_imported(tmp_path: Path) -> None:
    script = (
        "import sys, json; from mcp_tool_filter.cli.bare_mitmproxy import keep_addons_apart;"
        "keep_addons_apart(); import mcp_tool_filter.cli.lean;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=surroundings(tmp_path),
    )
    assert not set(json.loads(ended.stdout)) & set(HEAVY)
