"""With a lock, only approved definitions are listed and called, for every kind of asker."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation import conversation
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.messages import large
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import waits
from mcp_tool_filter.core.policy.verdict import Forward, Reply, Rewrite
from mcp_tool_filter.rooms.lock.lock import Lock, parse_json
from tests.core.conversation.asking_kinds import CHANGED, Http, asked, finished, open_session
from tests.core.conversation.test_kinds import SHAPES, assert_unknown, without_list
from tests.make import answering, asking, calling, definition, listing_of, policy, text_of
from tests.rooms.stdio.test_only_kinds import stdio
from tests.rows import each_row

A, B, OTHER_A = definition("a"), definition("b"), definition("a", ',"title":"x"')
SAME_A = b'{ "inputSchema":{"type":"obj\\u0065ct"}, "name":"a" }'
BROKEN_A = b'{"name":"a"}'
TWICE_A = b'{"name":"a","inputSchema":{"type":"object","type":"object"}}'
EVERYWHERE = {**SHAPES, "stdio": stdio}
EVERY_SHAPE = pytest.mark.parametrize("shape", EVERYWHERE)


def locked(*names: str, deny: str = "", **more: object) -> Config:
    lock = Lock(tools={name: parse_json(definition(name)) for name in names}, digest=str(names))
    config = parse_config(deny=[deny] if deny else None)
    choice = replace(config.choice, lock=lock)
    return replace(config, choice=choice, limits=Limits(), **more)  # type: ignore[arg-type]


def in_shape(shape: str, *tools: str, config: Config | None = None) -> Conversation:
    """Open a conversation with an upstream that had these tools at our start."""
    in_force = policy(*tools)
    in_force.adopt(config or locked("a", "b"))
    return EVERYWHERE[shape](in_force)


def lists(between: Conversation, *definitions: bytes, more: str = "", ask: str = "{}") -> list[str]:
    """Let the upstream list; return the names that the client gets."""
    assert asked(between, asking("tools/list", params=ask)) == Forward()
    raw = listing_of(*definitions, more=more)
    verdict = finished(between.from_upstream(raw)).verdict
    said = raw if isinstance(verdict, Forward) else text_of(verdict)
    return [one["name"] for one in json.loads(said)["result"]["tools"]]


def can_call(between: Conversation, name: str) -> bool:
    verdict = asked(between, calling(name, id="7"))
    if isinstance(verdict, Reply):
        assert_unknown(verdict, name)
        return False
    between.from_upstream(answering("{}", id="7"))
    return True


@pytest.fixture(params=[False, True], ids=["at once", "in steps"])
def in_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(conversation, "_LONG", 0)
        monkeypatch.setattr(large, "_STEP", 60)


@EVERY_SHAPE
@pytest.mark.usefixtures("in_steps")
def test_a_tool_is_exposed_while_its_definition_is_the_approved_one(shape: str) -> None:
    between = in_shape(shape, "a", "b", "new")
    seen = [
        ([A, B, definition("new")], ["a", "b"]),
        ([SAME_A, B], ["a", "b"]),
        ([OTHER_A, B], ["b"]),
        ([BROKEN_A, B], ["b"]),
        ([A, B], ["a", "b"]),
        ([B], ["b"]),  # gone
        ([A], ["a"]),  # it is back: a lock pins it, not the first list
        ([A, OTHER_A, B], ["b"]),  # two definitions, and only one is approved
        ([A, B], ["a", "b"]),
        ([OTHER_A, A, B], ["b"]),
        ([TWICE_A, B], ["b"]),
    ]
    for tools, names in seen:
        for _ in range(2):
            assert lists(between, *tools) == names
        assert [name for name in ("a", "b", "new", "none") if can_call(between, name)] == names


@EVERY_SHAPE
@pytest.mark.usefixtures("in_steps")
def test_one_page_is_enough_to_hide_a_changed_tool(shape: str) -> None:
    """Its list is not complete, and may never be."""
    between = in_shape(shape, "a", "b")
    assert lists(between, A, B) == ["a", "b"]
    assert lists(between, OTHER_A, more=',"nextCursor":"2"') == []
    assert not can_call(between, "a")
    assert can_call(between, "b")
    assert lists(between, A, ask='{"cursor":"2"}') in ([], ["a"])
    assert lists(between, A, B) == ["a", "b"]


@EVERY_SHAPE
@pytest.mark.usefixtures("in_steps")
def test_a_list_of_unusual_params_also_hides_a_changed_tool(shape: str) -> None:
    between = in_shape(shape, "a", "b")
    assert lists(between, A, B) == ["a", "b"]
    assert lists(between, OTHER_A, ask='{"filter":"a"}') == []
    assert not can_call(between, "a")


def test_a_list_that_nobody_asked_for_hides_a_changed_tool() -> None:
    between = in_shape("session", "a", "b")
    assert lists(between, A, B) == ["a", "b"]
    between.from_upstream(listing_of(OTHER_A, id="99"))
    assert not can_call(between, "a")


HTTP = sorted(SHAPES)


CASES = [(one, known) for one in HTTP for known in (True, False) if known or "our own" not in one]


@each_row(("shape", "is_listed"), CASES)
def test_a_call_waits_for_the_list_if_that_may_have_changed(shape: str, is_listed: bool) -> None:
    """Before the first list, and after the upstream has said that its list changed."""
    between = in_shape(shape, "a", "b")
    if is_listed:
        assert lists(between, A, B) == ["a", "b"]
        between.from_upstream(CHANGED)
    waiting = between.from_client(calling("a", id="5"), None, Http())
    assert waits(waiting)
    next(waiting)
    verdict = finished(waiting, (listing_of(OTHER_A, B),)).verdict
    assert_unknown(verdict, "a")
    assert can_call(between, "b")
    assert not can_call(between, "a")


def test_if_the_changed_list_cannot_be_had_an_approved_tool_is_unknown() -> None:
    between = in_shape("session", "a")
    assert lists(between, A) == ["a"]
    between.from_upstream(CHANGED)
    assert_unknown(without_list(between, calling("a", id="5"), is_refusal=True), "a")
    assert lists(between, A) == ["a"]
    assert can_call(between, "a")


def test_two_askers_have_lists_of_their_own() -> None:
    in_force = policy("a", "b")
    in_force.adopt(locked("a", "b"))
    one, other = (open_session(in_force, capabilities) for capabilities in ("{}", '{"roots":{}}'))
    assert lists(one, A, B) == ["a", "b"]
    assert lists(other, OTHER_A, B) == ["b"]
    assert can_call(one, "a")
    assert not can_call(other, "a")


def test_patterns_hide_approved_tools_and_another_lock_applies_at_once() -> None:
    between = in_shape("session", "a", "b", config=locked("a", "b", deny="^b"))
    assert lists(between, A, B) == ["a"]
    between.policy.adopt(locked("b"))
    assert not can_call(between, "a")
    assert can_call(between, "b")


def test_a_changed_definition_stays_hidden_under_other_patterns() -> None:
    between = in_shape("session", "a", "b")
    assert lists(between, A, OTHER_A, B) == ["b"]
    between.policy.adopt(locked("a", "b", deny="^x"))
    assert not can_call(between, "a")


@each_row("method", ["initialize", "server/discover"])
@each_row("said", ["", ',"instructions":"x"', ',"instructions":"\\u0078"'])
def test_other_instructions_get_a_warning(method: str, said: str) -> None:
    config = locked("a")
    assert isinstance(config.choice.lock, Lock)
    lock = replace(config.choice.lock, instructions="x")
    in_force, told = policy("a"), Mock()
    in_force.adopt(replace(config, choice=replace(config.choice, lock=lock)))
    in_force.tell_hidden = told
    between = Conversation(in_force)
    asked(between, asking(method))
    answer = answering(f'{{"protocolVersion":"2025-11-25"{said}}}')
    assert between.from_upstream(answer).verdict == Forward()  # type: ignore[union-attr]
    warning = "the server's instructions are not the approved ones (--lock)"
    assert [one.args[0] for one in told.mock_calls] == ([] if said else [(warning,)])


@EVERY_SHAPE
def test_with_shadow_the_lock_only_reports(shape: str) -> None:
    between = in_shape(shape, "a", config=locked("a", shadow=True))
    for tools in ([A, B], [OTHER_A]):
        assert asked(between, asking("tools/list")) == Forward()
        judged = finished(between.from_upstream(listing_of(*tools)))
        assert judged.verdict == Forward()
        assert isinstance(judged.would, Rewrite)
        assert "(--lock)" in judged.would.reason.drift[-1]
    assert can_call(between, "a")
    assert can_call(between, "b")
