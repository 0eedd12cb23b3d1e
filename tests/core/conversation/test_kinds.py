"""Each kind of asker has its own snapshot, and never sees another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import Mock, patch

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation import conversation, declared
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.declared import ALL_CAPABILITIES, canonical
from mcp_tool_filter.core.conversation.kinds import Kind
from mcp_tool_filter.core.conversation.lists import MOST_BYTES
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.messages import large
from mcp_tool_filter.core.messages.limits import R2025_06_18, R2025_11_25, R2026_07_28, Limits
from mcp_tool_filter.core.messages.tool_requests import parse_tool_call
from mcp_tool_filter.core.policy.effects import CannotList, FetchTools, waits
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.situation import Client, Session, Via
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.policy.verdict import Forward, Reply, Verdict, Why
from tests import make
from tests.core.conversation.asking_kinds import (
    CHANGED,
    Http,
    asked,
    finished,
    listed,
    open_session,
)
from tests.core.conversation.test_conversation import LIST, Linked
from tests.make import (
    answering,
    asking,
    at_once,
    calling,
    definition,
    judge_from_upstream,
    listing,
    policy,
    text_of,
)
from tests.rows import each_row

MORE = ',"nextCursor":"2"'


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
    raw = changed("read")
    assert listed(other, raw) == raw
    assert text_of(asked(other, LIST)) == raw


def changed(name: str, more: str = "") -> bytes:
    """Write the list of a tool whose definition has changed."""
    return make.listing_of(definition(name, ',"title":"new"'), more=more)


def test_a_users_list_is_never_given_to_another() -> None:
    in_force = policy("read")
    ann, bob = (open_session(in_force, like_the_fetch=False) for _ in "ab")
    assert listed(ann, listing("read", "of_ann")) == listing("read", "of_ann")
    assert listed(bob, listing("of_bob")) == listing("of_bob")
    assert asked(ann, calling("of_ann", id="2")) == Forward()
    for by, tool in [(bob, "of_ann"), (ann, "of_bob"), (bob, "read")]:
        assert_unknown(asked(by, calling(tool, id="3")), tool)


def assert_unknown(verdict: Verdict, tool: str) -> None:
    assert make.error_in(verdict) == (-32601, f"Tool not found: {shown(tool)}")


def test_a_client_without_a_session_is_identified_by_its_credentials() -> None:
    in_force = policy("read")
    ann, again, bob = (user(in_force, one) for one in ("ann", "ann", "bob"))
    listed(ann, listing("of_ann"))
    assert asked(again, calling("of_ann", id="2")) == Forward()
    assert waits(bob.from_client(calling("of_ann", id="2"), None, Http()))


def test_a_pinned_definition_stays_within_its_kind() -> None:
    in_force = policy("read")
    ann, bob = (open_session(in_force, like_the_fetch=False) for _ in "ab")
    assert listed(ann, listing("read")) == listing("read")
    assert text_of(asked(ann, LIST)) == listing("read")
    assert text_of(at_once(ann.from_upstream(changed("read"))).verdict) == listing("read")
    assert listed(bob, changed("read")) == changed("read")


def test_a_description_of_some_tools_is_never_taken_for_a_list() -> None:
    """Its definitions may be in another form, or for this one request."""
    between = open_session(policy("x"))
    assert asked(between, asking("toolsets/describe", id="2")) == Forward()
    described = definition("comes", ',"title":"described"')
    finished(between.from_upstream(make.listing_of(described, id="2")))
    assert listed(between, listing("stays", "comes")) == listing("stays", "comes")


WHOLE = listing("read", "write")
PART = listing("read")


def teaches_nothing(in_force: PolicyInForce, capabilities: str = "{}") -> bool:
    """Tell whether the next client of the kind still gets the upstream's whole list."""
    other = open_session(in_force, capabilities)
    verdict = asked(other, LIST)
    seen = text_of(verdict) if isinstance(verdict, Reply) else listed(other, WHOLE)
    return seen == WHOLE and asked(other, calling("write", id="2")) == Forward()


@pytest.mark.parametrize("params", [
    '{"cursor":5}', '{"cursor":null}', '{"cursor":[]}', '{"cursor":"x"}', '{"toolset":"a"}',
])  # fmt: skip
def test_an_odd_request_for_a_list_teaches_no_other_client(params: str) -> None:
    in_force = policy("other")
    odd = open_session(in_force)
    decision = odd.from_client(asking("tools/list", params=params), None, Http())
    if waits(decision):
        assert isinstance(next(decision), FetchTools)
        finished(decision, (WHOLE,))
    assert finished(odd.from_upstream(PART)).verdict == Forward()
    assert teaches_nothing(in_force)


@pytest.mark.parametrize("ids", [("5", "5"), ("5", "6"), ("5", '"5"')])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_of_several_lists_at_once_none_teaches(ids: tuple[str, str], is_reversed: bool) -> None:
    """An answer with such an id may be that to the other request."""
    in_force = policy("other")
    odd = open_session(in_force)
    both = [
        asking("tools/list", id=ids[0]),
        asking("tools/list", id=ids[1], params='{"cursor":"x"}'),
    ]
    odd.from_client(b"[" + b",".join(both) + b"]", None, Http())
    answers = [listing("read", id=ids[0]), listing("read", id=ids[1])]
    for raw in reversed(answers) if is_reversed else answers:
        assert finished(odd.from_upstream(raw)).verdict == Forward()
    assert teaches_nothing(in_force)


@pytest.mark.parametrize("act", [
    asking("toolsets/choose", id="7"), answering('{"roots":[]}', id="7"),
    b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}',
])  # fmt: skip
def test_a_session_that_has_acted_teaches_no_other_client(act: bytes) -> None:
    """The upstream may list other tools to it from then on."""
    in_force = policy("other")
    odd = open_session(in_force)
    odd.from_client(act, None, Http())
    assert listed(odd, PART) == PART
    assert teaches_nothing(in_force)


def test_a_session_that_has_acted_does_not_change_a_list_for_others() -> None:
    in_force = policy("other")
    one, odd = open_session(in_force), open_session(in_force)
    assert listed(one, WHOLE) == WHOLE
    asked(odd, asking("toolsets/choose", id="7"))
    in_force.kinds.note_change_for_all()
    assert listed(odd, PART) == PART
    assert teaches_nothing(in_force)


def test_another_program_is_another_kind_of_asker() -> None:
    in_force = policy("other")
    session = Session()
    odd = Conversation(in_force, Client(session=session))
    odd.from_client(asking("initialize", params='{"capabilities":{},"clientInfo":{"name":"odd"}}'))
    odd.from_upstream(answering(f'{{"protocolVersion":"{R2025_11_25}"}}'))
    assert listed(odd, PART) == PART
    assert teaches_nothing(in_force)


def test_a_page_that_nobody_named_pins_nothing_for_others() -> None:
    in_force = policy("other")
    odd = open_session(in_force)
    assert asked(odd, asking("tools/list", params='{"cursor":"x"}')) == Forward()
    finished(odd.from_upstream(changed("write")))
    assert teaches_nothing(in_force)


def test_a_list_that_nobody_asked_for_pins_nothing_for_others() -> None:
    in_force = policy("other")
    odd = open_session(in_force)
    odd.from_upstream(changed("write"))
    assert teaches_nothing(in_force)


def test_a_list_of_several_pages_is_complete_with_its_last_page() -> None:
    between = open_session(policy())
    listed(between, listing("one", more=MORE))
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

    def page(more: str) -> bytes:
        return make.listing_of(definition("one", more), definition("two", reading), more=MORE)

    assert b"one" not in listed(between, page(""))
    in_force.adopt(parse_config(read_only="true", deny=["^rm"]))
    assert b"one" not in listed(between, page(reading))
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


@pytest.mark.parametrize(("before", "after"), [
    ({"deny": ["^RM"]}, {"deny": ["^RM"], "ignore_case": "true"}),
    ({"deny": ["rm*x"]}, {"deny_glob": ["rm*x"]}),
    ({"deny": ["rm"], "except": ["rm_tax"]}, {"deny": ["rm"], "except": ["other"]}),
], ids=str)  # fmt: skip
def test_patterns_that_look_the_same_apply(before: dict[str, Any], after: dict[str, Any]) -> None:
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
        big = definition(f"tool_{number}", ',"description":"' + "x" * 1_000_000 + '"')
        raw = make.listing_of(big, more=MORE if number < 20 else "")
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
    for lists in (False, True):
        in_force = small_policy("read")
        assert listed(user(in_force, "ann"), listing("mine")) == listing("mine")
        for number in range(2 * MOST):
            made_up = user(in_force, number)
            listed(made_up, listing("read", "new")) if lists else asked(made_up, LIST)
        ann = user(in_force, "ann")
        assert text_of(asked(ann, LIST)) == listing("mine")
        assert text_of(finished(ann.from_upstream(changed("mine"))).verdict) == listing("mine")
        assert isinstance(asked(user(in_force, "ann"), calling("new", id="3")), Reply)


def test_made_up_credentials_never_push_out_a_list_that_is_not_complete() -> None:
    in_force, seen = small_policy("read"), listing("mine", more=MORE)
    assert listed(user(in_force, "ann"), seen) == seen
    for number in range(2 * MOST):
        asked(user(in_force, number), LIST)
    assert listed(user(in_force, "ann"), changed("mine", MORE)) == seen


def test_a_full_memory_is_not_searched_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    in_force, now = small_policy("read"), 0.0
    in_force.clock = in_force.kinds._clock = lambda: now
    fill(in_force)
    many = len(in_force.kinds)
    looks = Mock(return_value=True)
    monkeypatch.setattr(Kind, "is_needed", property(looks))
    for now in (0.0, 2.0, 2.1, 2.9):
        asked(user(in_force, f"late {now}"), LIST)
    assert looks.call_count == many


def fill(in_force: PolicyInForce) -> None:
    """Let as many users as there is room for list tools of their own."""
    for number in range(MOST + 1):
        listed(user(in_force, number), listing(f"of_{number}"))


def test_made_up_askers_with_the_same_list_lock_nobody_out() -> None:
    in_force = small_policy("read")
    for number in range(4 * MOST):
        listed(user(in_force, f"made up {number}"), listing("read"))
    ann = user(in_force, "ann")
    assert listed(ann, listing("mine")) == listing("mine")
    assert asked(ann, calling("mine", id="2")) == Forward()
    assert text_of(asked(ann, LIST)) == listing("mine")


def test_what_a_page_has_shown_stays_when_a_call_fetches_the_whole_list() -> None:
    """The upstream may have changed the tool in between."""
    ann, first = open_session(policy("other"), who="ann"), listing("mine", more=MORE)
    assert listed(ann, first) == first
    call = ann.from_client(calling("of_ann", id="2"), None, Http())
    assert waits(call)
    assert isinstance(next(call), FetchTools)
    fetched = make.listing_of(definition("mine", ',"title":"new"'), definition("of_ann"))
    assert finished(call, (fetched,)).verdict == Forward()
    whole = listing("mine", "of_ann", id="3")
    assert text_of(asked(ann, asking("tools/list", id="3"))) == whole


@pytest.mark.parametrize("is_listed", [True, False])
def test_without_room_a_new_asker_is_judged_by_its_own_list_each_time(is_listed: bool) -> None:
    """Not by that of the start: others who fill the memory must not take its tools away."""
    in_force = small_policy("read", "rm")
    if not is_listed:
        fetched = replace(example(), pages=(), is_listed=False)
        in_force = PolicyInForce(config=in_force.config, fetched=fetched, clock=float)
    fill(in_force)
    late = user(in_force, "late")
    before = in_force.kinds.size
    for name in ("mine", "other"):  # nothing is pinned for it
        assert listed(late, listing(name, "rm")) == listing(name)
        for called, is_there in ((name, True), ("rm", False), ("no_such_tool", False)):
            call = late.from_client(calling(called, id="3"), None, Http())
            assert waits(call)
            assert isinstance(next(call), FetchTools)
            verdict = finished(call, (listing(name, "rm"),)).verdict
            assert isinstance(verdict, Forward if is_there else Reply)
    listed(late, listing("a", more=MORE))
    assert in_force.kinds.size == before  # what is not kept takes no room from others for ever


def test_a_kind_that_nobody_uses_makes_room_for_a_new_one() -> None:
    now = 0.0
    in_force = small_policy("x", clock=lambda: now)
    fill(in_force)
    now = 0.9 * IDLE
    assert isinstance(asked(user(in_force, 0), LIST), Forward | Reply)
    now = 1.1 * IDLE
    assert listed(user(in_force, "late"), listing("mine")) == listing("mine")
    assert in_force.kinds.of(user(in_force, 0).client).is_listed
    assert not in_force.kinds.of(user(in_force, 1).client).is_listed


def test_sessions_that_have_ended_make_room() -> None:
    seconds = count()
    in_force = small_policy("x", clock=lambda: float(next(seconds)))
    for number in range(6 * MOST):
        between = open_session(in_force, like_the_fetch=False)
        mine = f"of_{number}"
        assert listed(between, listing(mine)) == listing(mine)
        assert asked(between, calling(mine, id="2")) == Forward()
    assert len(in_force.kinds) <= MOST + 1


def test_long_capabilities_are_not_kept() -> None:
    """Each message may declare other ones, of megabytes."""
    before = declared._canonical.cache_info().currsize
    for number in range(10):
        assert len(canonical(f'{{"experimental":"{number}{"x" * 10_000}"}}')) == 64
    assert declared._canonical.cache_info().currsize == before


# A client that has not listed yet: denied tools are not found; other calls wait for its list


@pytest.mark.parametrize(
    ("tool", "is_there"), [("read", True), ("no_such_tool", False), ("rm_rf", False), ("rm", False)]
)
def test_every_name_waits_for_the_clients_list(tool: str, is_there: bool) -> None:
    """If only denied names were refused at once, the time would tell them from unknown ones."""
    between = open_session(policy("read", "more", deny="^rm"))
    waiting = between.from_client(calling(tool), None, Http())
    assert waits(waiting)
    assert isinstance(next(waiting), FetchTools)
    verdict = finished(waiting, (listing("read", "rm_rf"),)).verdict
    if is_there:
        assert verdict == Forward()
    else:
        assert verdict.text == text_of(asked(between, calling(tool)))
    assert asked(between, calling("read", id="2")) == Forward()
    assert isinstance(asked(between, calling("more", id="3")), Reply)


def without_list(between: Conversation, raw: bytes, *, is_refusal: bool = False) -> Verdict:
    """Let the client call while our own request for its list fails."""
    waiting = between.from_client(raw, None, Http())
    assert waits(waiting)
    next(waiting)
    with pytest.raises(StopIteration) as made:
        waiting.throw(CannotList("HTTP 401", is_refusal=is_refusal))
    verdict: Verdict = made.value.value.verdict
    return verdict


@each_row("name", ["rm", "Rm", "mine", "mine\u200b", " mine", "read"])
@each_row("like_the_fetch", [True, False])
def test_without_a_list_only_a_user_may_have_own_tools(name: str, like_the_fetch: bool) -> None:
    """Anybody else gets the same answer for denied and unknown tools: the upstream's own words for
    an unknown one would tell that the denied one is hidden."""
    between = open_session(policy("read", deny="^rm"), who="" if like_the_fetch else "ann")
    verdict = without_list(between, calling(name))
    if name == "read" or (name == "mine" and not like_the_fetch):
        assert verdict == Forward()
    else:
        assert_unknown(verdict, name)


RESULT = '{"isError":%s,"content":[{"type":"text","text":"%s"}]}'


@each_row(("member", "says_unknown"), [
    ('"error":{"code":-32602,"message":"Unknown tool: mine"}', True),
    ('"error":{"code":-32602,"message":"MCP error -32602: Tool mine not found"}', True),
    ('"error":{"code":-32601,"message":"Method not found"}', True),
    ('"result":' + RESULT % ("true", "Unknown tool: mine"), True),
    ('"result":' + RESULT % ("true", "tool 'mine' does not exist"), True),
    ('"error":{"code":-32602,"message":"Invalid arguments for tool mine: path"}', False),
    ('"error":{"code":-32603,"message":"The file was not found"}', False),
    ('"result":' + RESULT % ("true", "No such file: mine"), False),
    ('"result":' + RESULT % ("true", "Unknown tool: hammer"), False),
    ('"result":' + RESULT % ("false", "Unknown tool: mine"), False),
    ('"result":' + RESULT % ("true", "Unknown tool: mine" + " x" * 5000), False),  # says more
    ('"result":{"isError":true,"content":7}', False),
    ('"result":7', False),
])  # fmt: skip
def test_a_tool_unknown_upstream_is_not_found_in_our_words(member: str, says_unknown: bool) -> None:
    """Only where we had no list to ask: elsewhere each answer passes in its own bytes."""
    answer = f'{{"jsonrpc":"2.0","id":1,{member}}}'.encode()
    in_force = policy("read", deny="^rm")
    ann = open_session(in_force, who="ann")
    assert without_list(ann, calling("mine")) == Forward()
    verdict = finished(judge_from_upstream(ann, answer)).verdict
    if says_unknown:
        assert_unknown(verdict, "mine")
    elif '"result":7' not in member:
        assert verdict == Forward()
    bob = open_session(in_force, like_the_fetch=False)
    listed(bob, listing("mine"))
    assert asked(bob, calling("mine")) == Forward()
    if '"result":7' not in member:
        assert finished(judge_from_upstream(bob, answer)).verdict == Forward()


@pytest.mark.parametrize("is_refusal", [True, False])
def test_calls_wait_once_for_an_upstream_that_does_not_list(is_refusal: bool) -> None:
    """The next ones are judged at once, for a while. A refusal comes soon, and may end soon."""
    in_force = policy("read", deny="^rm")
    now = in_force.clock = Mock(return_value=100.0)
    ann = open_session(in_force, who="ann")
    assert without_list(ann, calling("mine"), is_refusal=is_refusal) == Forward()
    assert waits(ann.from_client(calling("mine", id="2"), None, Http())) == is_refusal
    if not is_refusal:
        assert isinstance(asked(ann, calling("rm", id="3")), Reply)
    bob = open_session(in_force, like_the_fetch=False)
    assert waits(bob.from_client(calling("mine"), None, Http()))
    now.return_value += 60
    assert waits(ann.from_client(calling("mine", id="4"), None, Http()))


def test_in_the_older_transport_a_denied_call_does_not_wait() -> None:
    """Some upstreams never answer on a second stream, which we need there to ask."""
    in_force = policy("read", deny="^rm")
    session = Session(revision="2024-11-05", is_like_the_fetch=False)
    between = Conversation(in_force, Client(Via.LEGACY_SSE, session))
    assert isinstance(asked(between, calling("rm")), Reply)
    assert waits(between.from_client(calling("mine", id="2"), None, Http()))


def test_an_upstream_that_lists_only_to_users_has_no_snapshot_at_start() -> None:
    fetched = replace(example(), pages=(), is_listed=False)
    in_force = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=fetched)
    ann = open_session(in_force, who="ann")
    assert without_list(ann, calling("read")) == Forward()
    refused = asked(ann, calling("rm", id="2"))
    assert isinstance(refused, Reply)
    assert refused.reason.why is Why.DENIED
    assert listed(ann, listing("read", "rm", id="5"), id="5") == listing("read", id="5")
    assert isinstance(without_list(Conversation(in_force), calling("rm", id="6")), Reply)


@pytest.mark.parametrize("seconds", [None, 2.0], ids=["at once", "waiting"])
@pytest.mark.parametrize("form", [b"%b", b"[%b]"], ids=["alone", "in a batch"])
def test_the_first_list_is_filtered_even_while_waiting(form: bytes, seconds: float | None) -> None:
    """Only its page says what the tools are: the list that would be in force is not whole yet."""
    link = Linked() if seconds is None else Linked(to_tools_list=seconds)
    between = open_session(policy("other", deny="^rm", links=(link,)))
    finished(between.from_client(LIST, None, Http()))
    verdict = finished(between.from_upstream(form % listing("read", "rm_rf"))).verdict
    assert text_of(verdict) == form % listing("read")


@each_row("has_own_tools", [True, False])
@each_row("is_listed", [True, False])
def test_where_we_cannot_ask_no_tool_of_the_clients_own_is_refused(
    is_listed: bool, has_own_tools: bool
) -> None:
    """A client that is nobody else than our fetch has no other tools than that saw; denied and
    unknown ones get the same answer there."""
    pages = (listing("read", "rm"),) if is_listed else ()
    fetched = replace(example(), pages=pages, is_listed=is_listed)
    in_force = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=fetched)
    session, who = Session(is_like_the_fetch=not has_own_tools), "ann" if has_own_tools else ""
    between = Conversation(in_force, Client(Via.LEGACY_SSE, session, credential=who))
    for number, name in enumerate(("rm", "read", "mine")):
        verdict = at_once(between.from_client(calling(name, id=str(number)))).verdict
        if name == "read" or (name == "mine" and (has_own_tools or not is_listed)):
            assert verdict == Forward()
        else:
            assert_unknown(verdict, name)
    if has_own_tools:
        between.from_client(asking("tools/list", id="5"))
        at_once(between.from_upstream(listing("mine", "rm", id="5")))
        assert at_once(between.from_client(calling("mine", id="6"))).verdict == Forward()
        for name in ("read", "rm"):
            assert isinstance(at_once(between.from_client(calling(name, id="7"))).verdict, Reply)


@pytest.mark.parametrize("listed_by", ["us", "nobody"])
def test_a_denied_call_whose_list_is_unknown_is_read_and_matched_once(listed_by: str) -> None:
    counted = Mock(side_effect=parse_tool_call)
    between = open_session(policy("other", deny="^rm"))
    with (
        patch("mcp_tool_filter.core.conversation.list_first.parse_tool_call", counted),
        patch("mcp_tool_filter.core.policy.tool_filter.parse_tool_call", counted),
        patch.object(Pattern, "matches", autospec=True, side_effect=Pattern.matches) as matches,
    ):
        if listed_by == "us":
            waiting = between.from_client(calling("rm"), None, Http())
            assert isinstance(next(waiting), FetchTools)  # type: ignore[arg-type]
            verdict = finished(waiting, (listing("rm"),)).verdict
        else:
            verdict = without_list(between, calling("rm"))
    assert isinstance(verdict, Reply)
    assert counted.call_count == 1
    assert sum(one.args[1] == "rm" for one in matches.mock_calls) == (listed_by == "us")


# When the upstream's list changes: in the session that is notified, and in all others


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
    goes, stays, rm = map(definition, ("goes", "stays", "rm"))
    again = make.listing_of(goes, definition("changes", ',"title":"x"'), stays, rm)
    for _ in range(2):  # the first list is learned, the second one comes from us
        asks = asked(between, LIST)
        got = listed_in(between, again) if asks == Forward() else text_of(asks)
        assert got == listing("goes", "stays")
    assert asked(between, calling("goes")) == Forward()
    for hidden in ("changes", "rm"):
        assert isinstance(asked(between, calling(hidden)), Reply)


def test_a_changed_tool_stays_if_the_fetch_saw_a_broken_definition_of_it_first() -> None:
    fetched = replace(example(), pages=(make.listing_of(b'{"name":"a"}', definition("a")),))
    between = open_session(PolicyInForce(config=parse_config(), fetched=fetched), ALL_CAPABILITIES)
    between.from_upstream(CHANGED)
    assert listed(between, changed("a")) == listing("a")
    assert asked(between, calling("a")) == Forward()


def test_the_first_definition_of_a_new_tool_counts_on_all_pages_and_for_calls() -> None:
    """Else a second one could show a tool that a hint hides, or hide one that it shows."""
    in_force = policy("x")
    in_force.adopt(parse_config(read_only="true", new_tools="judge"))
    between = open_session(in_force)
    listed(between, listing())
    reads = ',"annotations":{"readOnlyHint":true,"title":"\\u00e9"}'
    bad, good = definition("a"), definition("a", reads)
    assert listed(between, make.listing_of(bad, more=MORE)) == listing(more=MORE)
    assert asked(between, asking("tools/list", params='{"cursor":"2"}')) == Forward()
    assert listed_in(between, make.listing_of(good)) == listing()
    listed(between, make.listing_of(good, bad).replace(b'"a"', b'"b"'))
    assert asked(between, calling("b")) == Forward()
    assert isinstance(asked(between, calling("a")), Reply)


def stateless(in_force: PolicyInForce, who: str = "", revision: str = R2026_07_28) -> Conversation:
    return Conversation(in_force, Client(said_revision=revision, credential=who))


type Shape = Callable[[PolicyInForce], Conversation]

SHAPES: dict[str, Shape] = {
    "session": open_session,
    "session like our own": lambda known: open_session(known, ALL_CAPABILITIES),
    "session of a user": lambda known: open_session(known, like_the_fetch=False),
    "stateless": stateless,
    "stateless user": lambda known: stateless(known, "ann"),
    "stateless like our own": lambda known: stateless(known, revision=R2025_11_25),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("new_tools", ["hide", "judge"])
@pytest.mark.parametrize("is_long", [False, True])
def test_a_tool_comes_back_for_every_kind_of_client(
    shape: str, new_tools: str, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_long:
        monkeypatch.setattr(conversation, "_LONG", 0)
        monkeypatch.setattr(large, "_STEP", 300)
    assert_a_tool_comes_back(SHAPES[shape], new_tools, many=50 if is_long else 0)


def assert_a_tool_comes_back(shape: Shape, new_tools: str, *, many: int = 0) -> None:
    others = [f"tool_{number}" for number in range(many)]
    in_force = policy("goes", *others)
    in_force.adopt(parse_config(deny=["^rm"], new_tools=new_tools))
    between = shape(in_force)
    seen = [["goes", *others], others, ["goes", *others], ["goes", *others]]
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
    long = definition("long", ',"title":"%s"' % ("x" * 2**20))
    for tools in ([long, definition("short")], [], [long]):
        between.from_upstream(CHANGED)
        last = listed(between, make.listing_of(*tools))
    assert last == listing()
    assert in_force.kinds.size < 2**20


def test_new_tools_are_judged_in_the_next_list_even_without_a_notice() -> None:
    in_force = policy("x")
    in_force.adopt(parse_config(deny=["^rm"], new_tools="judge"))
    between = open_session(in_force)
    listed(between, listing("stays"))
    assert listed(between, listing("stays", "comes", "rm")) == listing("stays", "comes")
    assert asked(between, calling("comes")) == Forward()
    assert listed(between, listing("stays")) == listing("stays")
    assert listed(between, changed("comes")) == listing("comes")  # as it was pinned


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
    ann, bob = stateless(in_force), stateless(in_force, "bob")

    def list_of(capabilities: str) -> bytes:
        meta = f'{{"io.modelcontextprotocol/clientCapabilities":{capabilities}}}'
        return asking("tools/list", params=f'{{"_meta":{meta}}}')

    def learn(by: Conversation, capabilities: str, answer: bytes) -> None:
        assert asked(by, list_of(capabilities)) == Forward()
        by.from_upstream(answer)

    kinds = ["{}", '{"roots":{}}']
    for one in kinds:
        learn(ann, one, listing("stays", "goes"))
        assert isinstance(asked(ann, list_of(one)), Reply)
    learn(bob, "{}", listing("of_bob"))
    ann.from_upstream(CHANGED)
    for one in kinds:
        learn(ann, one, listing("stays", "comes"))
        assert text_of(asked(ann, list_of(one))) == listing("stays")
    assert isinstance(asked(bob, list_of("{}")), Reply)
