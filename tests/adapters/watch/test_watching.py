"""Which messages the terminal, the audit log and the metrics get."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.watch.watching import Watching
from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.observers.audit.entry import Entry
from mcp_tool_filter.policy.config import Config, parse_config
from mcp_tool_filter.policy.exchange import Client, Session
from mcp_tool_filter.policy.rule_effects import WriteLog
from tests.make import answering, asking, calling


def audit(file: Path, fsync: str = "interval") -> Config:
    return parse_config(deny=["x"], audit_log=str(file), audit_fsync=fsync)


def talk(watching: Watching) -> None:
    """A ping, a call and a denied call, each with its answer, and a call without one."""
    policy = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=example("read", "rm"))
    policy.observe = watching.observe
    conversation = Conversation(policy, Client(session=Session(id="s-1")))
    conversation.from_client(asking("ping", id="1"))
    conversation.from_upstream(answering("{}", id="1"))
    conversation.from_client(calling("read", id="2"))
    conversation.from_upstream(answering('{"content":[]}', id="2"))
    conversation.from_client(calling("rm", id="3"))
    conversation.from_client(calling("read", id="4"))


def told(entries: list[Entry]) -> list[tuple[object, object]]:
    return [(entry.get("tool"), entry.get("verdict")) for entry in entries]


CALLS = [("read", "forwarded"), ("rm", "refused"), ("read", "forwarded")]


def test_each_sink_gets_the_messages_that_matter_until_it_is_closed() -> None:
    """A ping is not reported. A call without an answer is reported at the end."""
    one: list[Entry] = []
    other: list[Entry] = []
    watching = Watching(parse_config(), [one.append, other.append])
    talk(watching)
    assert told(one) == CALLS[:2]
    watching.close()
    assert told(one) == told(other) == CALLS


@pytest.mark.parametrize(
    ("fsync", "is_shown", "waits"),
    [("interval", False, True), ("always", False, False), ("interval", True, False)],
)
def test_entries_are_made_later_unless_something_waits_for_them(
    tmp_path: Path, fsync: str, is_shown: bool, waits: bool
) -> None:
    waiting: list[Callable[[], None]] = []
    shown: list[Entry] = []
    sinks = [shown.append] if is_shown else []
    watching = Watching(audit(tmp_path / "audit.jsonl", fsync), sinks, soon=waiting.append)
    talk(watching)
    watching.close()
    assert bool(waiting) == waits


def test_a_rules_log_line_is_audited_and_not_shown_twice(tmp_path: Path) -> None:
    """The log has shown it already."""
    file = tmp_path / "audit.jsonl"
    shown: list[Entry] = []
    watching = Watching(audit(file), [shown.append])
    watching.enter_log(WriteLog("warn", "look here", "r"))
    watching.close()
    (entry,) = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert (entry["event"], entry["message"]) == ("rule", "look here")
    assert shown == []


def test_a_rules_log_line_is_not_kept_without_an_audit_log() -> None:
    shown: list[Entry] = []
    watching = Watching(parse_config(), [shown.append])
    watching.enter_log(WriteLog("warn", "look here", "r"))
    watching.close()
    assert shown == []


def test_a_sink_that_raises_is_logged_once_and_changes_no_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_entry: Entry) -> None:
        raise RuntimeError("a bug")

    watching = Watching(parse_config(), [fail])
    talk(watching)
    assert caplog.messages == ["cannot report what happened to a message"]


def test_an_audit_log_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="Cannot write the audit log"):
        Watching(audit(tmp_path / "none" / "audit.jsonl"))
