"""Which messages the terminal, the audit log and the metrics get."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce, RulesAtWork
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import WriteLog
from mcp_tool_filter.core.policy.situation import Client, Session
from mcp_tool_filter.core.process.statistics import JsonObject, Statistics
from mcp_tool_filter.rooms.audit.entry import Entry
from mcp_tool_filter.rooms.page import dashboard
from mcp_tool_filter.rooms.page.dashboard import Overview
from mcp_tool_filter.rooms.telemetry.watching import Watching
from tests.core.http.listening import INITIALIZE, INITIALIZED, RM, answer, ask, asked, listener
from tests.make import answering, asking, calling, listing


def audit(file: Path) -> Config:
    return parse_config(deny=["x"], audit_log=str(file))


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


@pytest.mark.parametrize("is_shown", [False, True])
def test_entries_are_made_later_unless_somebody_reads_them(tmp_path: Path, is_shown: bool) -> None:
    waiting: list[Callable[[], None]] = []
    shown: list[Entry] = []
    sinks = [shown.append] if is_shown else []
    watching = Watching(audit(tmp_path / "audit.jsonl"), sinks, soon=waiting.append)
    talk(watching)
    watching.close()
    assert bool(waiting) is not is_shown


def test_a_rules_log_line_is_audited_and_not_shown_twice(
    tmp_path: Path,
) -> None:
    """The log has shown it already."""
    file = tmp_path / "audit.jsonl"
    shown: list[Entry] = []
    for config in (audit(file), parse_config()):
        watching = Watching(config, [shown.append])
        watching.enter_log(WriteLog("warn", "look here", "r"))
        watching.close()
    (entry,) = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert (entry["event"], entry["message"], shown) == ("rule", "look here", [])


def test_a_sink_that_raises_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_entry: Entry) -> None:
        raise RuntimeError("a bug")

    watching = Watching(parse_config(), [fail])
    talk(watching)
    assert caplog.messages == ["cannot report what happened to a message"]


# The filter at a glance, as the page and the commands of mitmproxy show it

MODE = "reverse:http://127.0.0.1:3000"
WHERE = "http://127.0.0.1:3000/mcp"


def watched(door: Listener, *asked: bytes) -> Overview:
    """Count what this listener's clients do from now on: first they ask this."""
    counted = Statistics()
    door.policy.observe = lambda judged: counted.note(judged, now=100.0)
    for one in asked:
        ask(one, door)
    return Overview({MODE: door}, {MODE: counted}, clock=lambda: 107.0)


def lines_of(overview: Overview) -> JsonObject:
    (lines,) = overview.render()
    return lines


def test_tools_are_shown_with_what_became_of_their_calls() -> None:
    overview = watched(listener(), calling("read"), calling("rm"), calling("rm"))
    assert list(dashboard.render_tools(overview.render())) == [
        f"{WHERE}: 1 exposed, 1 hidden",
        "  read: exposed, 1 calls",
        "  rm: hidden, denied by ^rm, 2 refused",
    ]
    read, rm = lines_of(overview)["tools"]
    assert (read["exposed"], read["by_deny"], read["why"]) == (True, False, "")
    assert (rm["exposed"], rm["by_deny"], rm["bytes"]) == (False, True, len(RM))


def test_only_what_an_exception_would_expose_can_be_shown_by_a_click() -> None:
    door = listener(listing("read", "rm", "say"))

    def hidden() -> dict[str, tuple[str, bool]]:
        tools = lines_of(watched(door))["tools"]
        return {one["name"]: (one["why"], one["by_deny"]) for one in tools}

    hinted = ("denied by --read-only", True)
    door.policy.adopt(parse_config(deny=["^rm"], read_only="true"))
    assert hidden() == {"read": hinted, "rm": ("denied by ^rm", True), "say": hinted}
    door.policy.adopt(parse_config(deny=["^rm"], allow=["^read"], read_only="true"))
    unmatched = ("matches no allow pattern", False)
    assert hidden() == {"read": hinted, "rm": ("denied by ^rm", False), "say": unmatched}


def test_the_counts_are_shown_in_words() -> None:
    door = listener()
    overview = watched(door, calling("rm"), b"{")
    at_work = RulesAtWork(hits=(("stop", 3),), metrics=(("slow", 1.5),))
    door.policy.rules_at_work = lambda: at_work
    assert list(dashboard.render_statistics(overview.render())) == [
        WHERE, "  messages: 2, of which 0 invalid", f"  lists: 0, each {len(RM):,} bytes shorter",
        "  calls: 0, refused: 2", "  rule stop: 3 hits", "  metric slow: 1.5",
    ]  # fmt: skip


def test_refusals_say_when_and_why() -> None:
    door = listener()
    overview = watched(door, calling("rm"), b"{")
    newest, oldest = lines_of(overview)["refusals"]
    assert (oldest["tool"], oldest["why"], oldest["seconds_ago"]) == ("rm", "denied by ^rm", 7.0)
    assert (newest["tool"], newest["why"]) == ("malformed", "not valid JSON")
    door.policy.adopt(parse_config(deny=["^read"]))
    assert lines_of(overview)["refusals"] == [newest, oldest]


def test_a_session_is_shown_without_enough_of_its_id_to_take_it_over() -> None:
    door = listener()
    hello = asked(INITIALIZE, door)
    door.note_answer_head(hello, 200, "0123456789abcdef")
    answer(door, hello, INITIALIZED)
    overview = watched(door)
    (line,) = lines_of(overview)["sessions"]
    assert line["id"] == "…89abcdef"
    assert next(dashboard.render_sessions(overview.render())) == f"{WHERE}: 1 sessions"


def test_a_name_that_could_draw_on_the_terminal_is_shown_escaped_and_kept_as_it_is() -> None:
    """A click on a tool needs its real name. A command is shown as people call it."""
    door = listener(answering('{"tools":[{"name":"a\\u001b[2J","inputSchema":{"type":"object"}}]}'))
    door.called = "npx server"
    shown = lines_of(watched(door))
    assert shown["upstream"] == "npx server"
    (tool,) = shown["tools"]
    assert tool["id"] == "a\x1b[2J"
    assert tool["name"].isprintable()
