"""Each kind of asker has its own snapshot and never sees another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mcp_tool_filter.conversation import kinds as capabilities
from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.kinds import ALL_CAPABILITIES, MOST_BYTES, Kind, canonical
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.effects import FetchTools, waits
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.verdict import Forward, Reply
from mcp_tool_filter.protocol.limits import R2025_06_18, R2025_11_25, Limits
from tests.conversation.asking_kinds import (
    CHANGED,
    LIST,
    Http,
    asked,
    finished,
    listed,
    open_session,
)
from tests.make import (
    answering,
    asking,
    at_once,
    calling,
    definition,
    error_in,
    listing,
    policy,
    replied,
    text_of,
)


def test_a_client_with_all_capabilities_is_answered_from_the_fetched_list() -> None:
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


def test_a_users_list_is_never_given_to_another() -> None:
    in_force = policy("read")
    ann, bob = (open_session(in_force, like_the_fetch=False) for _ in "ab")
    assert listed(ann, listing("read", "of_ann")) == listing("read", "of_ann")
    assert listed(bob, listing("of_bob")) == listing("of_bob")
    assert asked(ann, calling("of_ann", id="2")) == Forward()
    for by, tool in [(bob, "of_ann"), (ann, "of_bob"), (bob, "read")]:
        verdict = asked(by, calling(tool, id="3"))
        assert f"Tool not found: {tool}".encode() in replied(verdict)


def test_a_client_without_a_session_is_identified_by_its_credentials() -> None:
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


def test_a_description_of_some_tools_is_never_taken_for_a_list() -> None:
    """Its definitions may be in another form, or for this one request."""
    between = open_session(policy("x"))
    assert asked(between, asking("tools/describe", id="2")) == Forward()
    described = definition("comes", ',"title":"described"').decode()
    finished(between.from_upstream(answering(f'{{"tools":[{described}]}}', id="2")))
    assert listed(between, listing("stays", "comes")) == listing("stays", "comes")


def test_a_list_of_several_pages_is_complete_with_its_last_page() -> None:
    in_force = policy()
    between = open_session(in_force)
    listed(between, listing("one", more=',"nextCursor":"2"'))
    assert waits(between.from_client(calling("two", id="9"), None, Http()))
    asked(between, asking("tools/list", id="3", params='{"cursor":"2"}'))
    between.from_upstream(listing("two", id="3"))
    assert asked(between, calling("two", id="9")) == Forward()
    assert isinstance(asked(between, calling("three", id="9")), Reply)


def test_what_the_first_page_showed_stays_if_the_patterns_change_before_the_last_page() -> None:
    """Else a tool that a hint has hidden could come back with a friendlier one."""
    in_force = policy()
    in_force.adopt(parse_config(read_only="true"))
    between = open_session(in_force, like_the_fetch=False)
    reading = ',"annotations":{"readOnlyHint":true}'

    def page(more: str, next_page: str = "") -> bytes:
        tools = definition("one", more) + b"," + definition("two", reading)
        return answering('{"tools":[' + tools.decode() + f"]{next_page}}}")

    assert b"one" not in listed(between, page("", ',"nextCursor":"2"'))
    in_force.adopt(parse_config(read_only="true", deny=["^rm"]))
    assert b"one" not in listed(between, page(reading, ',"nextCursor":"2"'))
    asked(between, asking("tools/list", id="3", params='{"cursor":"2"}'))
    between.from_upstream(listing("rm", id="3"))
    assert isinstance(asked(between, calling("one", id="8")), Reply)
    assert asked(between, calling("two", id="9")) == Forward()


def test_other_patterns_apply_to_every_kind() -> None:
    in_force = policy("read", "write")
    ann = open_session(in_force, like_the_fetch=False)
    listed(ann, listing("read", "write"))
    in_force.adopt(parse_config(deny=["^read"]))
    assert isinstance(asked(ann, calling("read", id="2")), Reply)
    assert asked(ann, calling("write", id="3")) == Forward()
    in_force.adopt(parse_config(deny=["(?!)"]))
    assert asked(ann, calling("read", id="4")) == Forward()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"deny": ["^RM"]}, {"deny": ["^RM"], "ignore_case": "true"}),
        ({"deny": ["rm*x"]}, {"deny_glob": ["rm*x"]}),
        ({"deny": ["rm"], "except": ["rm_tax"]}, {"deny": ["rm"], "except": ["other"]}),
    ],
    ids=str,
)
def test_patterns_that_only_look_the_same_apply(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    in_force = policy("rm_tax")
    in_force.adopt(parse_config(before))
    ann = open_session(in_force, like_the_fetch=False)
    listed(ann, listing("rm_tax"))
    assert asked(ann, calling("rm_tax", id="2")) == Forward()
    in_force.adopt(parse_config(after))
    assert isinstance(asked(ann, calling("rm_tax", id="3")), Reply)


MOST = 20  # kinds
IDLE = 3600.0  # seconds


def small_policy(*names: str, clock: Callable[[], float] = float) -> PolicyInForce:
    """A policy that remembers only a few kinds of asker."""
    config = replace(parse_config(deny=["^rm"]), limits=Limits(sessions=MOST))
    fetched = replace(example(), pages=(listing(*names),))
    return PolicyInForce(config=config, fetched=fetched, clock=clock)


def user(in_force: PolicyInForce, name: object) -> Conversation:
    return Conversation(in_force, Client(said_revision=R2025_11_25, credential=f"user {name}"))


def test_equal_lists_are_shared() -> None:
    in_force = small_policy("read")
    for number in range(MOST):
        listed(user(in_force, number), listing("a", "b"))
    assert len({id(kind.snapshot) for _, kind in in_force.kinds}) == 1


def test_the_bytes_of_all_lists_are_bounded() -> None:
    in_force = policy("read")
    users = [user(in_force, number) for number in range(150)]
    for one in users:  # all are known before the first lists
        asked(one, LIST)
    for number, one in enumerate(users):
        big = definition(f"tool_{number}", ',"description":"' + "x" * 1_000_000 + '"').decode()
        more = ',"nextCursor":"2"' if number < 20 else ""
        raw = answering('{"tools":[' + big + f"]{more}}}")
        assert finished(one.from_upstream(raw)).verdict == Forward()
    assert in_force.kinds.size <= MOST_BYTES + 3_000_000  # and the one that came last
    assert "tool_149" not in in_force.kinds.of(users[-1].client).snapshot.allowed
    in_force.kinds.forget_all()
    assert in_force.kinds.size < 1000


def test_a_forgotten_kind_is_known_again_after_one_list() -> None:
    in_force = policy("read")
    client = Client(said_revision=R2025_11_25, credential="ann")
    listed(Conversation(in_force, client), listing("of_ann"))
    in_force.kinds.forget_all()
    again = Conversation(in_force, client)
    assert listed(again, listing("of_ann")) == listing("of_ann")
    assert asked(again, calling("of_ann", id="2")) == Forward()


def test_a_forgotten_session_with_a_list_of_its_own_goes_back_to_the_one_it_shared() -> None:
    """Else a client that opens many sessions could make the filter forget new tools."""
    in_force = policy("a")
    one = open_session(in_force, ALL_CAPABILITIES)
    one.from_upstream(CHANGED)
    listed(one, listing("a"))
    in_force.kinds.forget_all()
    assert listed(one, listing("a", "new")) == listing("a")


def test_made_up_credentials_never_push_out_pinned_tools() -> None:
    """Most upstreams refuse them; others list the same tools to everybody."""
    changed = answering('{"tools":[' + definition("mine", ',"title":"new"').decode() + "]}")
    for lists in (False, True):
        in_force = small_policy("read")
        assert listed(user(in_force, "ann"), listing("mine")) == listing("mine")
        for number in range(2 * MOST):
            made_up = user(in_force, number)
            if lists:
                listed(made_up, listing("read", "new"))
            else:
                asked(made_up, LIST)
        assert len(in_force.kinds) <= MOST
        ann = user(in_force, "ann")
        assert text_of(asked(ann, LIST)) == listing("mine")
        assert text_of(finished(ann.from_upstream(changed)).verdict) == listing("mine")
        assert isinstance(asked(user(in_force, "ann"), calling("new", id="3")), Reply)


def test_made_up_credentials_never_push_out_a_list_that_is_not_complete() -> None:
    in_force = small_policy("read")
    page = '{"tools":[%s],"nextCursor":"2"}'
    seen = answering(page % definition("mine").decode())
    changed = answering(page % definition("mine", ',"title":"new"').decode())
    assert listed(user(in_force, "ann"), seen) == seen
    for number in range(2 * MOST):
        asked(user(in_force, number), LIST)
    assert listed(user(in_force, "ann"), changed) == seen


def test_a_full_memory_is_not_searched_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    in_force, now = small_policy("read"), 0.0
    in_force.clock = in_force.kinds._clock = lambda: now
    for number in range(MOST):
        listed(user(in_force, number), listing("a"))
    looks = 0

    def counting(_kind: Kind) -> bool:
        nonlocal looks
        looks += 1
        return True

    monkeypatch.setattr(Kind, "is_needed", property(counting))
    for number in range(MOST, 3 * MOST):
        asked(user(in_force, number), calling("read"))
    assert looks == MOST
    now = 2.0
    asked(user(in_force, "late"), calling("read"))
    assert looks == 2 * MOST


def test_what_a_page_has_shown_stays_when_a_call_fetches_the_whole_list() -> None:
    """The upstream may have changed the tool in between."""
    in_force = policy("other")
    ann = open_session(in_force, like_the_fetch=False)
    ann.client.credential = "ann"
    seen = definition("mine").decode()
    first = answering('{"tools":[' + seen + '],"nextCursor":"2"}')
    assert listed(ann, first) == first
    call = ann.from_client(calling("of_ann", id="2"), None, Http())
    assert waits(call)
    assert isinstance(next(call), FetchTools)
    changed = definition("mine", ',"title":"new"').decode()
    of_ann = definition("of_ann").decode()
    fetched = answering('{"tools":[' + changed + "," + of_ann + "]}")
    assert finished(call, (fetched,)).verdict == Forward()
    whole = answering('{"tools":[' + seen + "," + of_ann + "]}", id="3")
    assert text_of(asked(ann, asking("tools/list", id="3"))) == whole


@pytest.mark.parametrize("is_listed", [True, False])
def test_without_room_a_new_asker_gets_only_tools_that_our_own_fetch_has_seen(
    is_listed: bool,
) -> None:
    in_force = small_policy("read", "rm")
    if not is_listed:
        fetched = replace(example(), pages=(), is_listed=False)
        in_force = PolicyInForce(config=in_force.config, fetched=fetched, clock=float)
    for number in range(MOST):
        listed(user(in_force, number), listing("a"))
    late = user(in_force, "late")
    for _ in range(2):  # nothing is pinned for it
        came = listed(late, listing("new", "read", "rm"))
        assert came == (listing("read") if is_listed else listing())
    for name in ("new", "rm", "no_such_tool"):
        refused = asked(late, calling(name, id="3"))
        assert error_in(refused) == (-32601, f"Tool not found: {name}")
    assert isinstance(asked(late, calling("read", id="3")), Forward if is_listed else Reply)
    before = in_force.kinds.size
    listed(late, listing("a", more=',"nextCursor":"2"'))
    assert in_force.kinds.size == before  # what is not kept takes no room from others for ever


def test_a_kind_that_nobody_uses_makes_room_for_a_new_one() -> None:
    now = 0.0
    in_force = small_policy("x", clock=lambda: now)
    for number in range(MOST):
        listed(user(in_force, number), listing("a"))
    now = 0.9 * IDLE
    assert isinstance(asked(user(in_force, 0), LIST), Forward | Reply)
    now = 1.1 * IDLE
    assert listed(user(in_force, "late"), listing("mine")) == listing("mine")
    assert in_force.kinds.of(user(in_force, 0).client).is_listed
    assert not in_force.kinds.of(user(in_force, 1).client).is_listed


def test_sessions_that_have_ended_make_room() -> None:
    in_force = small_policy("x")
    for _ in range(3 * MOST):
        between = open_session(in_force, like_the_fetch=False)
        assert listed(between, listing("mine")) == listing("mine")
        assert asked(between, calling("mine", id="2")) == Forward()
    assert len(in_force.kinds) <= MOST


def test_long_capabilities_are_not_kept() -> None:
    """Each message may declare other ones, of megabytes."""
    before = capabilities._canonical.cache_info().currsize
    for number in range(10):
        assert len(canonical(f'{{"experimental":"{number}{"x" * 10_000}"}}')) == 64
    assert capabilities._canonical.cache_info().currsize == before
