"""Each kind of asker has its own snapshot, and nobody sees another's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.fetched import example
from mcp_tool_filter.conversation.judged import Arrival, Judged
from mcp_tool_filter.conversation.kinds import (
    ALL_CAPABILITIES,
    MOST_BYTES,
    MOST_KINDS,
    canonical,
)
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.effects import CannotList, Decision, FetchTools, Together, waits
from mcp_tool_filter.policy.exchange import Client, Session
from mcp_tool_filter.policy.verdict import Forward, Reply, Rewrite, Verdict
from mcp_tool_filter.protocol.messages import Request
from mcp_tool_filter.protocol.revisions import R2025_06_18, R2025_11_25, R2026_07_28
from tests.conversation.test_conversation import Linked
from tests.make import answering, asking, at_once, calling, definition, listing, policy, text_of

LIST = asking("tools/list")


class Http(Arrival):
    """What an HTTP request says, in short."""

    can_list = True

    def may_use_snapshot(self, request: Request) -> bool:
        return True


def open_session(
    in_force: PolicyInForce,
    capabilities: str = "{}",
    revision: str = R2025_11_25,
    *,
    like_the_fetch: bool = True,
) -> Conversation:
    """Shake hands as a client with these capabilities."""
    between = Conversation(in_force, Client(session=Session(is_like_the_fetch=like_the_fetch)))
    between.from_client(asking("initialize", params=f'{{"capabilities":{capabilities}}}'))
    between.from_upstream(answering(f'{{"protocolVersion":"{revision}"}}'))
    return between


def asked(by: Conversation, raw: bytes) -> Verdict:
    judged: Judged = at_once(by.from_client(raw, None, Http()))
    return judged.verdict


def finished(decision: Decision[Any]) -> Any:
    """Go through all pauses in which others would be served."""
    came: object = None
    while waits(decision):
        try:
            effect = decision.send(came)
        except StopIteration as made:
            return made.value
        several = effect.decisions if isinstance(effect, Together) else ()
        came = [finished(one) for one in several]
    return decision


def listed(by: Conversation, raw: bytes, id: str = "1") -> bytes:
    """Let the upstream list; return what the client gets."""
    assert asked(by, asking("tools/list", id=id)) == Forward()
    verdict = finished(by.from_upstream(raw)).verdict
    return raw if isinstance(verdict, Forward) else text_of(verdict)


def test_a_client_that_declares_all_is_answered_from_the_fetched_list() -> None:
    between = open_session(policy("read", "rm", deny="^rm"), ALL_CAPABILITIES)
    assert text_of(asked(between, LIST)) == listing("read")


def test_other_capabilities_get_their_first_list_from_the_upstream_and_then_a_snapshot() -> None:
    """The fetched list has tools that an upstream does not offer to every client."""
    in_force = policy("read", "sample", "rm", deny="^rm")
    first, second = open_session(in_force), open_session(in_force)
    assert listed(first, listing("read", "rm")) == listing("read")
    assert text_of(asked(second, LIST)) == listing("read")
    third = open_session(in_force, '{"sampling":{}}')
    assert listed(third, listing("read", "sample", "rm")) == listing("read", "sample")


def test_the_order_and_spelling_of_capabilities_do_not_matter() -> None:
    assert canonical('{"b": {}, "a":{"x":1.0}}') == canonical('{"a":{ "x":1.0 },"b":{}}')
    assert canonical("not json") == "not json"
    assert len(canonical('{"x":"' + "y" * 10_000 + '"}')) == 64


def test_each_revision_has_its_own_form_of_the_definitions() -> None:
    in_force = policy("read")
    other = open_session(in_force, ALL_CAPABILITIES, R2025_06_18)
    raw = answering('{"tools":[' + definition("read", ',"title":"x"').decode() + "]}")
    assert listed(other, raw) == raw
    assert text_of(asked(other, LIST)) == raw


def test_a_users_list_is_never_anothers() -> None:
    in_force = policy("read")
    ann, bob = (open_session(in_force, like_the_fetch=False) for _ in "ab")
    assert listed(ann, listing("read", "of_ann")) == listing("read", "of_ann")
    assert listed(bob, listing("of_bob")) == listing("of_bob")
    assert asked(ann, calling("of_ann", id="2")) == Forward()
    for by, tool in [(bob, "of_ann"), (ann, "of_bob"), (bob, "read")]:
        verdict = asked(by, calling(tool, id="3"))
        assert isinstance(verdict, Reply)
        assert f"Tool not found: {tool}".encode() in verdict.text


def test_who_has_no_session_is_known_by_its_credentials() -> None:
    in_force = policy("read")
    ann, again, bob = (
        Conversation(in_force, Client(said_revision=R2025_11_25, credential=one))
        for one in ("ann", "ann", "bob")
    )
    listed(ann, listing("of_ann"))
    assert asked(again, calling("of_ann", id="2")) == Forward()
    assert waits(bob.from_client(calling("of_ann", id="2"), None, Http()))


def test_a_pinned_definition_stays_within_its_kind() -> None:
    in_force = policy("read")
    ann, bob = (open_session(in_force, like_the_fetch=False) for _ in "ab")
    changed = answering('{"tools":[' + definition("read", ',"title":"new"').decode() + "]}")
    assert listed(ann, listing("read")) == listing("read")
    assert text_of(asked(ann, LIST)) == listing("read")
    assert text_of(at_once(ann.from_upstream(changed)).verdict) == listing("read")
    assert listed(bob, changed) == changed


def test_a_list_of_several_pages_is_whole_with_its_last() -> None:
    in_force = policy()
    between = open_session(in_force)
    listed(between, listing("one", more=',"nextCursor":"2"'))
    assert waits(between.from_client(calling("two", id="9"), None, Http()))
    asked(between, asking("tools/list", id="3", params='{"cursor":"2"}'))
    between.from_upstream(listing("two", id="3"))
    assert asked(between, calling("two", id="9")) == Forward()
    assert isinstance(asked(between, calling("three", id="9")), Reply)


# Calls before a list was seen


def test_a_denied_name_is_not_found_before_any_list_was_seen() -> None:
    verdict = asked(open_session(policy("read", deny="^rm")), calling("rm_rf"))
    assert isinstance(verdict, Reply)
    assert b"Tool not found: rm_rf" in verdict.text


@pytest.mark.parametrize(("tool", "is_there"), [("read", True), ("no_such_tool", False)])
def test_any_other_name_waits_for_the_askers_list(tool: str, is_there: bool) -> None:
    between = open_session(policy("read", "more", deny="^rm"))
    waiting = between.from_client(calling(tool), None, Http())
    assert waits(waiting)
    assert isinstance(next(waiting), FetchTools)
    with pytest.raises(StopIteration) as made:
        waiting.send((listing("read", "rm_rf"),))
    verdict = made.value.value.verdict
    if is_there:
        assert verdict == Forward()
    else:
        assert verdict.text == text_of(asked(between, calling(tool)))
    assert asked(between, calling("read", id="2")) == Forward()
    assert isinstance(asked(between, calling("more", id="3")), Reply)


def test_a_call_goes_on_if_the_upstream_does_not_list() -> None:
    """Its own answer then says why, such as a 401 that says where to log in."""
    between = open_session(policy("read", deny="^rm"))
    waiting = between.from_client(calling("read"), None, Http())
    assert waits(waiting)
    next(waiting)
    with pytest.raises(StopIteration) as made:
        waiting.throw(CannotList("401"))
    assert made.value.value.verdict == Forward()


def test_an_upstream_that_lists_only_to_users_has_no_snapshot_at_start() -> None:
    fetched = replace(example(), pages=(), is_listed=False)
    in_force = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=fetched)
    ann = open_session(in_force, like_the_fetch=False)
    assert isinstance(asked(ann, calling("rm")), Reply)
    assert listed(ann, listing("read", "rm", id="5"), id="5") == listing("read", id="5")
    assert asked(Conversation(in_force), calling("rm", id="6")) != Forward()


@pytest.mark.parametrize("seconds", [None, 2.0], ids=["at once", "waiting"])
@pytest.mark.parametrize("form", [b"%b", b"[%b]"], ids=["alone", "in a batch"])
def test_a_kinds_first_list_is_filtered_also_where_it_waits(
    form: bytes, seconds: float | None
) -> None:
    """Only its page says what the tools are: the list that would be in force is not whole yet."""
    link = Linked() if seconds is None else Linked(to_tools_list=seconds)
    between = open_session(policy("other", deny="^rm", links=(link,)))
    finished(between.from_client(LIST, None, Http()))
    verdict = finished(between.from_upstream(form % listing("read", "rm_rf"))).verdict
    assert isinstance(verdict, Rewrite)
    assert verdict.text == form % listing("read")


# Edits, and how much is remembered


def test_other_patterns_apply_to_every_kind() -> None:
    in_force = policy("read", "write")
    ann = open_session(in_force, like_the_fetch=False)
    listed(ann, listing("read", "write"))
    in_force.adopt(parse_config(deny=["^read"]))
    assert isinstance(asked(ann, calling("read", id="2")), Reply)
    assert asked(ann, calling("write", id="3")) == Forward()
    in_force.adopt(parse_config(deny=["(?!)"]))
    assert asked(ann, calling("read", id="4")) == Forward()


def test_any_number_of_askers_costs_no_more_than_a_thousand() -> None:
    in_force = policy("read")
    names = [f"tool_{number}" for number in range(5)]
    for number in range(MOST_KINDS + 500):
        client = Client(said_revision=R2025_11_25, credential=f"user {number}")
        listed(Conversation(in_force, client), listing(*names))
    assert len(in_force.kinds) == MOST_KINDS
    snapshots = {id(kind.snapshot) for _, kind in in_force.kinds}
    assert len(snapshots) == 1  # whoever gets the same list shares it


def test_the_bytes_of_all_lists_are_bounded() -> None:
    in_force = policy("read")
    for number in range(70):
        client = Client(said_revision=R2025_11_25, credential=f"user {number}")
        big = definition(f"tool_{number}", ',"description":"' + "x" * 1_000_000 + '"').decode()
        listed(Conversation(in_force, client), answering('{"tools":[' + big + "]}"))
    assert in_force.kinds.size <= MOST_BYTES + 3_000_000  # and the one that came last
    for number in range(100):
        client = Client(said_revision=R2025_11_25, credential=f"slow user {number}")
        raw = answering('{"tools":[' + big + '],"nextCursor":"2"}')
        listed(Conversation(in_force, client), raw)
    assert in_force.kinds.size <= MOST_BYTES + 3_000_000
    in_force.kinds.forget_all()
    assert in_force.kinds.size < 1000


def test_a_forgotten_kind_costs_one_list() -> None:
    in_force = policy("read")
    client = Client(said_revision=R2025_11_25, credential="ann")
    listed(Conversation(in_force, client), listing("of_ann"))
    in_force.kinds.forget_all()
    again = Conversation(in_force, client)
    assert listed(again, listing("of_ann")) == listing("of_ann")
    assert asked(again, calling("of_ann", id="2")) == Forward()


# Lists that change

CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


def test_when_the_list_changed_a_removed_tool_is_gone_and_a_new_one_stays_hidden() -> None:
    between = open_session(policy("x"))
    listed(between, listing("stays", "goes"))
    between.from_upstream(CHANGED)
    assert listed(between, listing("stays", "comes", id="2"), id="2") == listing("stays", id="2")
    assert text_of(asked(between, asking("tools/list", id="3"))) == listing("stays", id="3")
    for tool in ("goes", "comes"):
        assert isinstance(asked(between, calling(tool, id="4")), Reply)


def test_a_changed_list_of_one_session_is_not_that_of_others() -> None:
    """Some upstreams switch tools on and off for one session."""
    in_force = policy("x")
    one, other = open_session(in_force), open_session(in_force)
    listed(one, listing("a", "b"))
    one.from_upstream(CHANGED)
    listed(one, listing("a", id="2"), id="2")
    assert listed(other, listing("a", "b")) == listing("a", "b")
    assert isinstance(asked(one, calling("b", id="3")), Reply)
    assert asked(other, calling("b", id="3")) == Forward()


def test_new_tools_may_be_judged_by_the_patterns_and_are_pinned_then() -> None:
    in_force = policy("x")
    in_force.adopt(parse_config(deny=["^rm"], new_tools="judge"))
    between = open_session(in_force)
    listed(between, listing("stays"))
    between.from_upstream(CHANGED)
    came = listed(between, listing("stays", "comes", "rm_rf", id="2"), id="2")
    assert came == listing("stays", "comes", id="2")
    assert asked(between, calling("comes", id="3")) == Forward()
    assert isinstance(asked(between, calling("rm_rf", id="4")), Reply)
    between.from_upstream(CHANGED)
    other = answering('{"tools":[' + definition("comes", ',"title":"x"').decode() + "]}", id="5")
    assert listed(between, other, id="5") == listing("comes", id="5")


def test_sessions_that_cannot_be_told_of_a_change_see_it_in_their_next_list() -> None:
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


def test_what_one_session_has_lost_others_keep() -> None:
    """A list that changes in one session must not be able to take tools from another."""
    in_force = policy("x")
    one, other = open_session(in_force), open_session(in_force)
    one.from_upstream(CHANGED)
    listed(one, listing("a"))
    assert listed(other, listing("a", "b"), id="1") == listing("a", "b")
    assert asked(other, calling("b", id="3")) == Forward()


def test_who_has_no_session_sees_a_change_whatever_its_capabilities_are() -> None:
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


def test_a_forgotten_session_with_a_list_of_its_own_goes_back_to_the_one_it_shared() -> None:
    """Or whoever opens many sessions could make the filter forget what is new."""
    in_force = policy("a")
    one = open_session(in_force, ALL_CAPABILITIES)
    one.from_upstream(CHANGED)
    listed(one, listing("a"))
    in_force.kinds.forget_all()
    assert listed(one, listing("a", "new")) == listing("a")


def test_made_up_tokens_do_not_push_out_known_lists() -> None:
    """The upstream refuses them, so nothing is known of these kinds."""
    in_force = policy("x")
    known = [Client(said_revision=R2025_11_25, credential=f"user {number}") for number in range(3)]
    for client in known:
        listed(Conversation(in_force, client), listing("a"))
    for number in range(MOST_KINDS + 10):
        made_up = Conversation(in_force, Client(said_revision=R2025_11_25, credential=f"{number}"))
        asked(made_up, LIST)
    assert len(in_force.kinds) == MOST_KINDS
    assert all(in_force.kinds.of(client).is_listed for client in known)


def test_many_users_with_lists_push_out_the_one_used_least_recently() -> None:
    in_force = policy("x")
    users = [Client(said_revision=R2025_11_25, credential=f"{n}") for n in range(MOST_KINDS + 1)]
    for user in users:
        listed(Conversation(in_force, user), listing("a"))
    assert in_force.kinds.of(users[-1]).is_listed
    assert not in_force.kinds.of(users[0]).is_listed
