"""Each kind of asker has its own snapshot and never sees another's."""

from __future__ import annotations

from mcp_tool_filter.conversation import kinds as capabilities
from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.kinds import ALL_CAPABILITIES, MOST_BYTES, MOST_KINDS, canonical
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.effects import waits
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.verdict import Forward, Reply
from mcp_tool_filter.protocol.limits import R2025_06_18, R2025_11_25
from tests.conversation.asking_kinds import CHANGED, LIST, Http, asked, listed, open_session
from tests.make import answering, asking, at_once, calling, definition, listing, policy, text_of


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
        assert isinstance(verdict, Reply)
        assert f"Tool not found: {tool}".encode() in verdict.text


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


def test_a_list_of_several_pages_is_complete_with_its_last_page() -> None:
    in_force = policy()
    between = open_session(in_force)
    listed(between, listing("one", more=',"nextCursor":"2"'))
    assert waits(between.from_client(calling("two", id="9"), None, Http()))
    asked(between, asking("tools/list", id="3", params='{"cursor":"2"}'))
    between.from_upstream(listing("two", id="3"))
    assert asked(between, calling("two", id="9")) == Forward()
    assert isinstance(asked(between, calling("three", id="9")), Reply)


def test_other_patterns_apply_to_every_kind() -> None:
    in_force = policy("read", "write")
    ann = open_session(in_force, like_the_fetch=False)
    listed(ann, listing("read", "write"))
    in_force.adopt(parse_config(deny=["^read"]))
    assert isinstance(asked(ann, calling("read", id="2")), Reply)
    assert asked(ann, calling("write", id="3")) == Forward()
    in_force.adopt(parse_config(deny=["(?!)"]))
    assert asked(ann, calling("read", id="4")) == Forward()


def test_the_number_of_remembered_kinds_is_bounded_and_equal_lists_are_shared() -> None:
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


def test_many_lists_push_out_the_least_recently_used_one() -> None:
    in_force = policy("x")
    users = [Client(said_revision=R2025_11_25, credential=f"{n}") for n in range(MOST_KINDS + 1)]
    for user in users:
        listed(Conversation(in_force, user), listing("a"))
    assert in_force.kinds.of(users[-1]).is_listed
    assert not in_force.kinds.of(users[0]).is_listed


def test_long_capabilities_are_not_kept() -> None:
    """Each message may declare other ones, of megabytes."""
    before = capabilities._canonical.cache_info().currsize
    for number in range(10):
        assert len(canonical(f'{{"experimental":"{number}{"x" * 10_000}"}}')) == 64
    assert capabilities._canonical.cache_info().currsize == before
