"""In an unknown mitmproxy the filter either holds, or does not start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import version
from mitmproxy.addonmanager import AddonManager
from mitmproxy.exceptions import AddonHalt
from mitmproxy.http import Message
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import Layer, NextLayer, NextLayerHook
from mitmproxy.proxy.layers import TCPLayer, modes
from mitmproxy.proxy.mode_servers import ReverseInstance

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.mitmproxy.selftest import PROBES, ProbeRun, refuse_other_mitmproxy
from tests.cli.launched import surroundings
from tests.filtered import LIST, call, filtered
from tests.hosts import mitmdump

type Orders = Generator[commands.Command, Any, None]


def test_the_filter_holds_here() -> None:
    refuse_other_mitmproxy()


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: str(probe.what))
def test_each_probe_sees_a_mitmproxy_tunnel(monkeypatch: pytest.MonkeyPatch, probe: Any) -> None:
    """What must not come out does come out, or what must does not."""
    monkeypatch.setattr(ReverseInstance, "make_top_layer", lambda _self, context: _Tunnel(context))
    with pytest.raises(StartError, match=f"mitmproxy {version.VERSION}"):
        refuse_other_mitmproxy()
    run = ProbeRun(probe)
    run.play()
    assert probe.request in run.to_upstream


class _Tunnel(Layer):
    """Passes everything as it comes."""

    def _handle_event(self, event: events.Event) -> Orders:
        server = self.context.server
        if isinstance(event, events.Start):
            yield commands.OpenConnection(server)
        elif isinstance(event, events.DataReceived):
            is_clients = event.connection is self.context.client
            yield commands.SendData(server if is_clients else self.context.client, event.data)


def _choose_tcp_after_the_addons(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: NextLayer) -> Orders:
        yield NextLayerHook(self)
        self.layer = TCPLayer(self.context)
        yield from self.layer.handle_event(events.Start())
        for event in self.events:
            yield from self.layer.handle_event(event)

    monkeypatch.setattr(NextLayer, "_ask", ask)


def _go_on_after_a_halt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trigger_event(self: AddonManager, event: Any) -> None:
        for addon in self.chain:
            try:
                await self.invoke_addon(addon, event)
            except AddonHalt:
                continue

    monkeypatch.setattr(AddonManager, "trigger_event", trigger_event)


def _ask_no_addon(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish_start(self: modes.ReverseProxy) -> Orders:
        self.child_layer = TCPLayer(self.context)
        self._handle_event = self.child_layer.handle_event
        yield from self.child_layer.handle_event(events.Start())

    monkeypatch.setattr(modes.ReverseProxy, "finish_start", finish_start)


def _stream_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies are not kept in flows any more."""
    monkeypatch.setattr(Message, "raw_content", property(lambda _self: None))


def _store_answers_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Message, "content", property(lambda _self: None, lambda _self, _new: None))


def _deliver_events_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Layer.handle_event

    def handle_event(self: Layer, event: events.Event) -> Orders:
        yield from before(self, event)
        if isinstance(event, events.DataReceived) and type(self).__name__ == "EngineLayer":
            yield commands.SendData(self.context.server, event.data)

    monkeypatch.setattr(Layer, "handle_event", handle_event)


CHANGES = [
    _choose_tcp_after_the_addons, _go_on_after_a_halt, _ask_no_addon, _stream_bodies,
    _store_answers_elsewhere, _deliver_events_twice,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_mitmproxy_is_refused_or_filtered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    change(monkeypatch)
    try:
        refuse_other_mitmproxy()
    except StartError:
        return
    async with filtered(tmp_path, new_tools=["judge"]) as between:
        assert b"Tool not found" in (await between.ask(call("delete_file"))).body
        assert b"delete_file" not in (await between.ask(LIST)).body
        assert not any(b"delete_file" in one.body for one in between.upstream.asked)


async def test_mitmdump_ends_with_two_lines(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from mitmproxy.proxy.mode_servers import ReverseInstance\n"
        "from mitmproxy.proxy.layers import TCPLayer\n"
        "ReverseInstance.make_top_layer = lambda self, context: TCPLayer(context)\n"
    )
    changed = {"PYTHONPATH": str(tmp_path)}
    async with mitmdump(home=tmp_path, environment=changed) as it:
        assert await it.exit_code() == 1
    what, why = it.stderr.strip().splitlines()[-2:]
    assert what == f"Error: The tool filter does not work with mitmproxy {version.VERSION}"
    assert why.startswith("A test with a denied call has failed")


# The launcher imports of mitmproxy only what its lean master needs, and the rest on demand

HEAVY = {"flask", "ldap3", "tornado", "urwid", "mitmproxy.addons.onboarding"}
_PROGRAM = """
import json, sys
from mcp_tool_filter.rooms.mitmproxy.command import keep_addons_apart
keep_addons_apart()
from mcp_tool_filter.rooms.mitmproxy import masters
print(json.dumps(sorted(sys.modules)))
for _ in range(2):
    masters._put_addons_together()
    import mitmproxy.addons
    print(bool(mitmproxy.addons.default_addons()))
    keep_addons_apart()  # too late, and without effect
"""


def test_addons_that_are_not_needed_are_imported_only_on_demand(tmp_path: Path) -> None:
    words = [sys.executable, "-W", "ignore", "-c", _PROGRAM]
    said = subprocess.check_output(words, text=True, env=surroundings(tmp_path))
    imported, *together = said.split("\n")
    assert not set(json.loads(imported)) & HEAVY
    assert together == ["True", "True", ""]
