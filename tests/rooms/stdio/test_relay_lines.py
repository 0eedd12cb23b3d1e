"""Where the lines of both sides go: to a real command, to the client, to a reader, or nowhere.

The command is ``cat``: what it was told can be read from its output.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import Deciding, Delay
from mcp_tool_filter.rooms.rules.file import RulesInForce
from mcp_tool_filter.rooms.stdio.child import KILL, Child, end_child
from mcp_tool_filter.rooms.stdio.relay import Happened, Relay, RelayedLines
from mcp_tool_filter.rooms.stdio.waiting import DecidingThread
from tests.make import answering, asking, calling, definition
from tests.rooms.stdio.test_judge import Judged


class Relayed:
    """Lines between a client, whose side is a pipe, and a command."""

    def __init__(
        self,
        rules: DecidingThread | None = None,
        command: Sequence[str] = ("cat",),
        config: Config | None = None,
    ) -> None:
        self.child = Child(command)
        self.said: list[str] = []
        self._heard, self._stdout = os.pipe()
        awake = rules.rules if rules else None
        links = (awake.link("a command"),) if isinstance(awake, RulesInForce) else ()
        self.judge = Judged(["^delete_"], config, links=links).judge
        self.happened: SimpleQueue[Happened] = SimpleQueue()
        given: dict[str, Any] = {"limits": Limits(), "stdout": self._stdout, "deciding": rules}
        between = self.child, self.judge, self.happened
        self.lines = RelayedLines(*between, say=self.said.append, **given)

    def client_hears(self) -> list[bytes]:
        return os.read(self._heard, 1 << 20).split(b"\n")

    def child_hears(self, lines: int = 1) -> list[bytes]:
        heard = b""
        while heard.count(b"\n") < lines and (more := self.child.read()):
            heard += more
        return heard.split(b"\n")

    def close(self) -> None:
        self.lines.close()
        end_child(self.child)
        self.child.close_output()
        os.close(self._heard)
        os.close(self._stdout)


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    with closing(Relayed()) as made:
        yield made


def test_a_batch_reaches_the_command_without_its_denied_members(relayed: Relayed) -> None:
    fine = calling("read_file", id="1")
    relayed.lines.from_client([b"[%s,%s]" % (fine, calling("delete_file", id="2"))])
    assert relayed.child_hears() == [b"[" + fine + b"]", b""]
    relayed.lines.from_child([b"[" + answering('{"content":[]}', id="1") + b"]"])
    heard = b"".join(relayed.client_hears())
    assert b'"id":1' in heard
    assert b"Tool not found: delete_file" in heard


def test_an_internal_error_ends_the_session(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RelayedLines, "_pass_from_client", lambda *_: 1 / 0)
    stdin, to_us = os.pipe()
    os.write(to_us, calling("read_file") + b"\n")
    assert Relay(relayed.lines, stdin=stdin).run() == 1
    assert relayed.said == [
        "Error: Internal error: ZeroDivisionError('division by zero')\nShutting down proxy"
    ]
    assert b"Upstream connection lost" in relayed.client_hears()[0]
    os.close(to_us)  # not stdin: a thread still looks at it


RULES = """
interceptor:
  chain: {timeout: 60s}
  rules:
    - {id: call, conditions: [tool_equals: slow_file], actions: [run_script: &gated
        {path: ./gated, decides: true, timeout: 20s}]}
    - {id: answer, conditions: [result_exists: slow], actions: [run_script: *gated]}
"""


CANCEL = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}'


@contextmanager
def holding(gate: Path, *, is_ruled: bool = True, **how: Any) -> Iterator[Relayed]:
    """Relay lines that the rules file beside the gate judges."""
    policy = RulesInForce(str(gate.with_name("rules.yaml"))) if is_ruled else None
    with closing(Relayed(DecidingThread(policy) if policy else None, **how)) as relayed:
        yield relayed


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe; the rules' script waits until the test opens it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = tmp_path / "gated"
    script.write_text(f"#!/bin/sh\nexec cat {gate}\n")
    script.chmod(0o755)
    (tmp_path / "rules.yaml").write_text(RULES)
    return gate


def test_lines_keep_their_order_when_one_waits_for_a_rule(gate: Path) -> None:
    with holding(gate) as relayed:
        slow, ping = calling("slow_file", id="1"), asking("ping", id="2")
        relayed.lines.from_client([slow, ping])
        gate.write_bytes(b"")
        relayed.lines.wait_for_client()
        assert relayed.child_hears(2) == [slow, ping, b""]
        late, soon = answering('{"slow":1}', id="1"), answering("{}", id="2")
        answers = Thread(target=relayed.lines.from_child, args=([late, soon],))
        answers.start()
        gate.write_bytes(b"")
        answers.join()
        assert relayed.client_hears() == [late, soon, b""]


@pytest.mark.parametrize("is_ruled", [False, True])
def test_answers_overtake_a_call_that_waits_for_the_list(gate: Path, *, is_ruled: bool) -> None:
    """A command may ask for its client's roots before it lists its tools."""
    with holding(gate, is_ruled=is_ruled, config=parse_config(read_only="true")) as relayed:
        relayed.lines.from_client([calling("read_file", id="1"), asking("ping", id="2")])
        asked = json.loads(relayed.child.read())
        assert asked["method"] == "tools/list"
        roots = answering('{"roots":[]}', id='"r"')
        relayed.lines.from_client([roots])
        assert relayed.child_hears() == [roots, b""]
        tool = definition("read_file", ',"annotations":{"readOnlyHint":true}').decode()
        relayed.lines.from_child([answering(f'{{"tools":[{tool}]}}', id=f'"{asked["id"]}"')])
        relayed.lines.wait_for_client()
        assert relayed.child_hears(2) == [calling("read_file", id="1"), asking("ping", id="2"), b""]


def test_a_call_that_is_cancelled_while_a_rule_holds_it_is_never_sent(gate: Path) -> None:
    with holding(gate) as relayed:
        first, ping = calling("slow_file", id='"a"'), asking("ping", id="2")
        relayed.lines.from_client([first, ping, asking("ping", id="3.0")])
        relayed.lines.from_client([(CANCEL % id).encode() for id in ("3", '"\\u0061"')])
        relayed.lines.wait_for_client()
        assert relayed.child_hears() == [ping, b""]
        assert relayed.judge.methods_in_flight() == ["ping"]


def test_a_cancelled_call_leaves_a_batch_that_a_rule_holds(gate: Path) -> None:
    with holding(gate) as relayed:
        slow, ping = calling("slow_file", id="1"), asking("ping", id="2")
        relayed.lines.from_client([b"[" + slow + b"," + ping + b"]"])
        relayed.lines.from_client([(CANCEL % 1).encode()])
        gate.write_bytes(b"")
        relayed.lines.wait_for_client()
        assert relayed.child_hears() == [b"[" + ping + b"]", b""]
        assert relayed.judge.methods_in_flight() == ["ping"]


def test_requests_that_a_rule_holds_get_an_error_when_the_command_is_lost(gate: Path) -> None:
    with holding(gate) as relayed:
        relayed.lines.from_client([asking("ping", id="0")])
        relayed.lines.from_client([calling("slow_file", id='"a"'), asking("ping", id="2.0")])
        lost = [json.loads(reply) for reply in relayed.lines.lost_replies()]
        assert [one["id"] for one in lost] == [0, "a", 2.0]
        assert {one["error"]["code"] for one in lost} == {-32000}
        relayed.lines.wait_for_client()
        assert relayed.child_hears() == [asking("ping", id="0"), b""]


def test_our_answers_never_wait_for_a_command_that_does_not_read(tmp_path: Path) -> None:
    """A command that is busy writing would wait for us, and we for it."""
    asked = "[from: server, method_equals: roots/list]"
    rules = f"interceptor: {{rules: [{{id: r, conditions: {asked}, actions: [block: no]}}]}}"
    (tmp_path / "rules.yaml").write_text(rules)
    with holding(tmp_path / "gate", command=["sleep", "60"]) as relayed:
        relayed.lines.from_child([asking("roots/list", id=str(n)) for n in range(2000)])
        relayed.lines.from_child([b'{"jsonrpc":"2.0","method":"still/here"}'])
        assert relayed.client_hears() == [b'{"jsonrpc":"2.0","method":"still/here"}', b""]
        relayed.child.send(KILL)


# The thread in which a relay's rules live


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[DecidingThread]:
    file = tmp_path / "policy.yaml"
    file.write_text("interceptor: {rules: [{id: a, actions: [allow]}]}")
    with closing(DecidingThread(RulesInForce(str(file)))) as made:
        yield made


def waiting(seconds: float, made: str) -> Deciding[str]:
    yield Delay(seconds)
    return made


def test_all_work_runs_in_one_thread_and_is_awaited(rules: DecidingThread) -> None:
    found = {rules.do(threading.get_ident) for _ in range(3)}
    assert len(found) == 1
    assert threading.get_ident() not in found
    with pytest.raises(ZeroDivisionError):
        rules.do(lambda: 1 / 0)


def test_decisions_wait_side_by_side(rules: DecidingThread) -> None:
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(rules.wait_for, rules.effects.outcome_of(waiting(1.0, "slow")))
        assert rules.wait_for(rules.effects.outcome_of(waiting(0.0, "quick"))) == "quick"
        assert slow.result() == "slow"


def test_a_decision_that_raises_is_reported(rules: DecidingThread) -> None:
    def raising() -> Deciding[str]:
        yield Delay(0.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rules.wait_for(rules.effects.outcome_of(raising()))
