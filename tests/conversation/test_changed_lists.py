"""When the upstream's list changes: in the session that is notified, and in all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcp_tool_filter.conversation import conversation
from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.kinds import ALL_CAPABILITIES, OnlyKinds
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.policy import snapshot
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.exchange import Client, Session, Via
from mcp_tool_filter.policy.verdict import Forward, Reply
from mcp_tool_filter.protocol import large
from mcp_tool_filter.protocol.limits import R2025_11_25, R2026_07_28
from tests.conversation.asking_kinds import (
    CHANGED,
    LIST,
    Http,
    asked,
    finished,
    listed,
    open_session,
)
from tests.make import answering, asking, calling, definition, listing, policy, text_of


def test_after_a_list_change_a_removed_tool_is_gone_and_a_new_one_hidden() -> None:
    between = open_session(policy("x"))
    listed(between, listing("stays", "goes"))
    between.from_upstream(CHANGED)
    assert listed(between, listing("stays", "comes", id="2"), id="2") == listing("stays", id="2")
    assert text_of(asked(between, asking("tools/list", id="3"))) == listing("stays", id="3")
    for tool in ("goes", "comes"):
        assert isinstance(asked(between, calling(tool, id="4")), Reply)


def test_a_tool_that_comes_back_as_it_was_is_shown_again() -> None:
    """Some upstreams switch tools off for a while. One that comes back changed is a new tool."""
    between = open_session(policy("x", deny="^rm"))
    listed(between, listing("stays", "goes", "changes", "rm"))
    between.from_upstream(CHANGED)
    assert listed(between, listing("stays")) == listing("stays")
    assert isinstance(asked(between, calling("goes")), Reply)
    between.from_upstream(CHANGED)
    other = definition("changes", ',"title":"x"').decode()
    parts = ",".join([definition("goes").decode(), other, definition("stays").decode()])
    again = answering(f'{{"tools":[{parts},{definition("rm").decode()}]}}')
    for _ in range(2):  # the first list is learned, the second one comes from us
        asks = asked(between, LIST)
        got = listed_in(between, again) if asks == Forward() else text_of(asks)
        assert got == listing("goes", "stays")
    assert asked(between, calling("goes")) == Forward()
    for hidden in ("changes", "rm"):
        assert isinstance(asked(between, calling(hidden)), Reply)


def stateless(in_force: PolicyInForce, who: str = "", revision: str = R2026_07_28) -> Conversation:
    return Conversation(in_force, Client(said_revision=revision, credential=who))


def stdio(in_force: PolicyInForce) -> Conversation:
    in_force.kinds = OnlyKinds(in_force.config, lambda _: None)
    return Conversation(in_force, Client(Via.STDIO, Session()))


SHAPES: dict[str, Callable[[PolicyInForce], Conversation]] = {
    "session": open_session,
    "session like our own": lambda known: open_session(known, ALL_CAPABILITIES),
    "session of a user": lambda known: open_session(known, like_the_fetch=False),
    "stateless": stateless,
    "stateless user": lambda known: stateless(known, "ann"),
    "stateless like our own": lambda known: stateless(known, revision=R2025_11_25),
    "stdio": stdio,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("new_tools", ["hide", "judge"])
@pytest.mark.parametrize("is_long", [False, True])
def test_a_tool_comes_back_for_every_kind_of_client(
    shape: str, new_tools: str, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"tool_{number}" for number in range(50)] if is_long else []
    if is_long:
        monkeypatch.setattr(conversation, "_LONG", 0)
        monkeypatch.setattr(large, "_STEP", 300)
        monkeypatch.setattr(snapshot, "_FEW", 5)
    in_force = policy("goes", *many)
    in_force.adopt(parse_config(deny=["^rm"], new_tools=new_tools))
    between = SHAPES[shape](in_force)
    seen = [["goes", *many], many, ["goes", *many], ["goes", *many]]
    for number, tools in enumerate(seen):
        if number:
            between.from_upstream(CHANGED)
        if asked(between, LIST) == Forward():
            verdict = finished(between.from_upstream(listing(*tools, "rm"))).verdict
            assert text_of(verdict) == listing(*tools)
        is_there = isinstance(asked(between, calling("goes", id="2")), Forward)
        assert is_there == ("goes" in tools)
        between.from_upstream(answering("{}", id="2"))


def listed_in(between: Conversation, raw: bytes) -> bytes:
    return text_of(finished(between.from_upstream(raw)).verdict)


def test_definitions_of_tools_that_are_gone_are_remembered_within_a_limit() -> None:
    in_force = policy("x")
    between = open_session(in_force)
    long = definition("long", ',"title":"%s"' % ("x" * 2**20)).decode()
    for tools in (f"{long},{definition('short').decode()}", "", f"{long}"):
        between.from_upstream(CHANGED)
        last = listed(between, answering(f'{{"tools":[{tools}]}}'))
    assert last == listing()
    assert in_force.kinds.size < 2**20


def test_new_tools_are_judged_in_the_next_list_even_without_a_notice() -> None:
    in_force = policy("x")
    in_force.adopt(parse_config(deny=["^rm"], new_tools="judge"))
    between = open_session(in_force)
    listed(between, listing("stays"))
    assert listed(between, listing("stays", "comes", "rm")) == listing("stays", "comes")
    assert asked(between, calling("comes")) == Forward()
    other = answering(f'{{"tools":[{definition("comes", ',"title":1').decode()}]}}')
    assert listed(between, listing("stays")) == listing("stays")
    assert listed(between, other) == listing("comes")  # as it was pinned


def test_a_changed_list_of_one_session_does_not_affect_others() -> None:
    """Some upstreams switch tools on and off for one session."""
    in_force = policy("x")
    one, other = open_session(in_force), open_session(in_force)
    listed(one, listing("a", "b"))
    one.from_upstream(CHANGED)
    listed(one, listing("a", id="2"), id="2")
    assert listed(other, listing("a", "b")) == listing("a", "b")
    assert isinstance(asked(one, calling("b", id="3")), Reply)
    assert asked(other, calling("b", id="3")) == Forward()


def test_sessions_without_notifications_see_a_change_in_their_next_list() -> None:
    """Not every client keeps a stream open, and one that connects later was never told."""
    in_force = policy("x")
    told, untold = open_session(in_force), open_session(in_force)
    listed(told, listing("stays", "goes"))
    told.from_upstream(CHANGED)
    assert asked(untold, LIST) == Forward()
    listed(untold, listing("stays", id="2"), id="2")
    assert text_of(asked(untold, asking("tools/list", id="3"))) == listing("stays", id="3")
    late = open_session(in_force)
    assert asked(late, LIST) == Forward()
    assert listed(late, listing("stays", "goes", "comes")) == listing("stays", "goes")


def test_a_client_without_a_session_sees_a_change_with_any_capabilities() -> None:
    """Each message of 2026-07-28 declares them, but not the notification that the list changed."""
    in_force = policy("x")

    def client(who: str = "") -> Conversation:
        return Conversation(in_force, Client(said_revision=R2026_07_28, credential=who))

    def list_of(capabilities: str) -> bytes:
        meta = f'{{"io.modelcontextprotocol/clientCapabilities":{capabilities}}}'
        return asking("tools/list", params=f'{{"_meta":{meta}}}')

    def learn(by: Conversation, capabilities: str, answer: bytes) -> None:
        by.from_client(list_of(capabilities), None, Http())
        by.from_upstream(answer)

    kinds = ["{}", '{"roots":{}}']
    for capabilities in kinds:
        learn(client(), capabilities, listing("stays", "goes"))
        assert isinstance(asked(client(), list_of(capabilities)), Reply)
    learn(client("bob"), "{}", listing("of_bob"))
    client().from_upstream(CHANGED)
    for capabilities in kinds:
        assert asked(client(), list_of(capabilities)) == Forward()
        learn(client(), capabilities, listing("stays", "comes"))
        assert text_of(asked(client(), list_of(capabilities))) == listing("stays")
    assert isinstance(asked(client("bob"), list_of("{}")), Reply)
