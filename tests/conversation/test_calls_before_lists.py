"""A client that has not listed yet: denied tools are not found; other calls wait for its list."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock, patch

import pytest

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.effects import CannotList, FetchTools, waits
from mcp_tool_filter.policy.exchange import Client, Session, Via
from mcp_tool_filter.policy.patterns import Pattern
from mcp_tool_filter.policy.verdict import Forward, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.tools import parse_tool_call
from tests.conversation.asking_kinds import LIST, Http, asked, finished, listed, open_session
from tests.conversation.test_conversation import Linked
from tests.make import at_once, calling, error_in, listing, policy, text_of


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


@pytest.mark.parametrize("name", ["rm", "mine", "no_such_tool"])
def test_without_a_list_denied_and_unknown_tools_get_the_same_answer(name: str) -> None:
    """The upstream's own words for an unknown tool would tell that the denied one is hidden."""
    verdict = without_list(open_session(policy("read", deny="^rm")), calling(name))
    assert error_in(verdict) == (-32601, f"Tool not found: {name}")


def test_without_a_list_a_call_of_a_tool_that_our_fetch_has_seen_is_forwarded() -> None:
    assert without_list(open_session(policy("read", deny="^rm")), calling("read")) == Forward()


def test_a_call_is_forwarded_if_the_upstream_refuses_its_client() -> None:
    """Its own answer then says why, such as a 401 that says where to log in."""
    between = open_session(policy("other", deny="^rm"))
    assert without_list(between, calling("read"), is_refusal=True) == Forward()
    refused = without_list(between, calling("rm", id="2"), is_refusal=True)
    assert error_in(refused) == (-32601, "Tool not found: rm")


def test_an_upstream_that_lists_only_to_users_has_no_snapshot_at_start() -> None:
    fetched = replace(example(), pages=(), is_listed=False)
    in_force = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=fetched)
    ann = open_session(in_force, like_the_fetch=False)
    for name, why in (("rm", Why.DENIED), ("read", Why.UNKNOWN)):  # observers are told which
        refused = without_list(ann, calling(name))
        assert isinstance(refused, Reply)
        assert refused.reason.why is why
    assert listed(ann, listing("read", "rm", id="5"), id="5") == listing("read", id="5")
    assert isinstance(without_list(Conversation(in_force), calling("rm", id="6")), Reply)


@pytest.mark.parametrize("seconds", [None, 2.0], ids=["at once", "waiting"])
@pytest.mark.parametrize("form", [b"%b", b"[%b]"], ids=["alone", "in a batch"])
def test_the_first_list_of_a_kind_is_filtered_even_while_waiting(
    form: bytes, seconds: float | None
) -> None:
    """Only its page says what the tools are: the list that would be in force is not whole yet."""
    link = Linked() if seconds is None else Linked(to_tools_list=seconds)
    between = open_session(policy("other", deny="^rm", links=(link,)))
    finished(between.from_client(LIST, None, Http()))
    verdict = finished(between.from_upstream(form % listing("read", "rm_rf"))).verdict
    assert isinstance(verdict, Rewrite)
    assert verdict.text == form % listing("read")


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("via", [Via.WEBSOCKET, Via.LEGACY_SSE])
def test_where_we_cannot_ask_denied_and_unknown_tools_get_the_same_answer(
    via: Via, is_listed: bool
) -> None:
    """There only tools are callable that our fetch has seen, until the client has its own list."""
    pages = (listing("read", "rm"),) if is_listed else ()
    fetched = replace(example(), pages=pages, is_listed=is_listed)
    in_force = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=fetched)
    between = Conversation(in_force, Client(via, Session()))
    for name in ("rm", "no_such_tool", "mine"):
        refused = at_once(between.from_client(calling(name))).verdict
        assert error_in(refused) == (-32601, f"Tool not found: {name}")
    assert isinstance(at_once(between.from_client(calling("read"))).verdict, Reply) != is_listed
    between.from_client(LIST)
    at_once(between.from_upstream(listing("mine", "rm")))
    if not is_listed:
        assert at_once(between.from_client(calling("mine", id="2"))).verdict == Forward()
        assert isinstance(at_once(between.from_client(calling("rm", id="3"))).verdict, Reply)


@pytest.mark.parametrize("listed_by", ["us", "nobody"])
def test_a_denied_call_whose_list_is_unknown_is_read_and_matched_once(listed_by: str) -> None:
    counted = Mock(side_effect=parse_tool_call)
    between = open_session(policy("other", deny="^rm"))
    with (
        patch("mcp_tool_filter.conversation.conversation.parse_tool_call", counted),
        patch("mcp_tool_filter.policy.tool_filter.parse_tool_call", counted),
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
