"""Whoever watches a call in the lane tells the same of it as if it had gone the whole way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import generate_latest

from mcp_tool_filter.cli.report import render_report
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.conversation.policy_in_force import Watch
from mcp_tool_filter.core.process.plugs import Sink
from mcp_tool_filter.core.process.site import Surroundings
from mcp_tool_filter.rooms.audit.activity import line_of
from mcp_tool_filter.rooms.audit.contents import Arguments
from mcp_tool_filter.rooms.audit.entries import Auditor, Wanted
from mcp_tool_filter.rooms.audit.entry import Entry, ShownEntry
from mcp_tool_filter.rooms.lane.lane import may_take
from mcp_tool_filter.rooms.page.timeline import Timeline
from mcp_tool_filter.rooms.telemetry.metrics import Metrics
from mcp_tool_filter.rooms.telemetry.watchers import _end_of, peer_of
from tests.core.engine.table import Client, Table
from tests.mcp_upstream import mcp_upstream, tool
from tests.raw_client import post
from tests.raw_upstream import SSE_HEAD, answer, chunk
from tests.rooms.lane.both_ways import (
    ANSWERS,
    CALL,
    HEAD,
    MEANWHILE,
    RESULT,
    SESSION,
    STYLES,
    Act,
    Style,
    heard,
    ready,
    says,
)
from tests.rows import each_row
from tests.served import served

_TIMES = {"upstream_ms": 3.25, "own_ms": 0.5}


EVENT = chunk(b"data: " + RESULT + b"\n\n")


class Watched:
    """What the terminal, the page and the metrics get."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []
        self.page, self.metrics = Timeline(), Metrics(dict)
        wanted = Wanted(
            origin_of=lambda origin: {"client": peer_of(origin)},  # type: ignore[arg-type]
            arguments=Arguments.NONE,
            with_passed=True,
            for_people=True,
            with_calls=True,
        )
        self.auditor = Auditor(self._write, wanted, instance="one")
        self.watch = Watch(self.auditor.note, self.auditor)

    def _write(self, entry: Entry) -> None:
        """Note an entry without what differs from one moment, or process, to the next."""
        assert isinstance(entry, ShownEntry)
        assert all(isinstance(entry[name], float) for name in _TIMES if name in entry)
        assert isinstance(entry["time"], str)
        entry["time"], entry["session"] = "2026-11-20T16:00:00.000Z", bool(entry["session"])
        entry |= {name: took for name, took in _TIMES.items() if name in entry}
        self.page.note(entry)
        self.metrics.show(entry)
        about = {"line": line_of(entry)[0], "client name": entry.client, "problem": entry.problem}
        self.entries.append({**entry, **about})

    def seen(self) -> dict[str, object]:
        lines = generate_latest(self.metrics.registry).decode().splitlines()
        numbers = [int(str(entry["number"])) for entry in self.page.recent()]
        return {
            "entries": [list(entry.items()) for entry in self.entries],
            "metrics": [line for line in lines if "_created" not in line],
            "recent": self.page.recent(),
            "details": [self.page.details(number) for number in numbers],
            "callers": self.page.callers(),
        }


def compared(body: bytes, *acts: Act, style: Style = SESSION) -> tuple[bool, dict[str, Any]]:
    """Let a call go both ways; return whether the lane took it, and what the watchers show."""
    seen, lanes = [], []
    for has_lane in (True, False):
        watched = Watched()
        it = ready(has_lane=has_lane, style=style, watch=watched.watch)
        known = heard(it, style.said(body), acts, style.head)
        steps: list[object] = [known, watched.seen()]
        watched.auditor.give_up(_end_of)
        steps.append(watched.seen())
        watched.auditor.close()
        seen.append([*steps, watched.seen()])
        lanes.append(it.lanes)
    assert lanes[1] == 0
    assert seen[0] == seen[1]
    return lanes[0] > 0, seen[1][-1]  # type: ignore[return-value]


def test_a_plain_call_is_told_of() -> None:
    taken, shown = compared(CALL, says(answer(RESULT)))
    assert taken
    assert dict(shown["entries"][-1])["line"] == (
        "16:00:00 127.0.0.2:50000 tools/call read: ok, 3.2 ms, 91 B -> 74 B"
    )
    assert 'mcp_tool_filter_calls_total{tool="read"} 2.0' in shown["metrics"]
    assert shown["details"][0] == {
        "arguments": '{"name":"read","arguments":{"a":1}}',
        "result": '{"content":[{"type":"text","text":"x"}]}',
    }


def test_what_is_long_is_cut() -> None:
    text = b"x" * 100_000
    taken, shown = compared(
        CALL.replace(b'"a":1', b'"a":"%b"' % text),
        says(answer(RESULT.replace(b'"x"', b'"%b"' % text))),
    )
    assert taken
    assert all(0 < len(one) < 20_000 for one in shown["details"][0].values())


@pytest.mark.parametrize("style", STYLES)
@each_row("name", ANSWERS)
def test_whatever_answers_is_told_of_as_usual(name: str, style: str) -> None:
    taken, _ = compared(CALL, says(ANSWERS[name]), style=STYLES[style])
    assert taken


def cancelled(table: Table, _client: Client) -> None:
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}'
    table.client().says(post(cancel, headers=HEAD))


def another(table: Table, _client: Client) -> None:
    table.client().says(post(CALL, headers=HEAD))


@pytest.mark.parametrize("answered", ["result", "error", "cut"])
@each_row("name", [*MEANWHILE, "it is cancelled", "another has the same id"])
def test_whatever_happens_meanwhile_is_told_of_as_usual(name: str, answered: str) -> None:
    act = {**MEANWHILE, "it is cancelled": cancelled, "another has the same id": another}[name]

    def ended(table: Table, _client: Client) -> None:
        for link in table.links:
            if link.is_open:
                link.says(ANSWERS[answered])

    taken, _ = compared(CALL, act, ended, lambda _table, client: client.leaves())
    assert taken


@pytest.mark.parametrize("begun", [SSE_HEAD, SSE_HEAD + EVENT], ids=["its head", "its event"])
@each_row("name", [*MEANWHILE, "it is cancelled"])
def test_whatever_happens_within_a_stream_is_told_of_as_usual(name: str, begun: bytes) -> None:
    def ended(table: Table, _client: Client) -> None:
        if table.link.is_open:
            table.link.says((EVENT if begun is SSE_HEAD else b"") + b"0\r\n\r\n")

    act = MEANWHILE.get(name, cancelled)
    taken, _ = compared(CALL, says(begun), act, ended, lambda _table, client: client.leaves())
    assert taken


def test_an_observer_that_fails_disturbs_no_call() -> None:
    watched = Watched()
    it = ready(has_lane=True, watch=watched.watch)

    def fail(_entry: Entry) -> None:
        raise RuntimeError("a bug")

    watched.auditor._write = fail
    it.client.says(post(CALL, headers=HEAD))
    it.table.link.says(answer(RESULT))
    assert it.client.got.endswith(RESULT)


async def may_take_with(sinks: Sequence[Sink] = (), tell: Any = None, **options: Any) -> bool:
    """Tell whether calls to an upstream take the lane, with these who watch."""
    around = Surroundings(
        rooms=ROOMS,
        warn=print,
        render=render_report,
        report=print,
        leave=print,
        make_tls=Mock(),
        sinks=sinks,
        tell=tell,
    )
    async with (
        mcp_upstream(tools=[tool("read")]) as upstream,
        served(to=upstream.url, surroundings=around, **options) as running,
    ):
        [site] = running.proxy.sites.values()
        return may_take(site)


@pytest.mark.parametrize("options", [{}, {"metrics_port": "0"}, {"dashboard": "0"}])
async def test_the_terminal_metrics_and_the_page_leave_the_lane_open(
    options: dict[str, Any],
) -> None:
    assert await may_take_with(**options)
    assert await may_take_with(sinks=[lambda _entry: None], **options)


async def test_whoever_reads_messages_closes_it(tmp_path: Path) -> None:
    assert not await may_take_with(audit_log=str(tmp_path / "log.jsonl"))
    assert not await may_take_with(otel="true")
    assert not await may_take_with(tell=Mock())
