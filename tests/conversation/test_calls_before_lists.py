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
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.policy.verdict import Forward, Reply, Verdict, Why
from mcp_tool_filter.protocol.limits import R2024_11_05
from mcp_tool_filter.protocol.tools import parse_tool_call
from tests.conversation.asking_kinds import LIST, Http, asked, finished, listed, open_session
from tests.conversation.test_conversation import Linked
from tests.make import asking, at_once, calling, error_in, listing, policy, rewritten, text_of


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


@pytest.mark.parametrize("name", ["rm", "Rm", "mine", "mine\u200b", " mine", "read"])
@pytest.mark.parametrize("like_the_fetch", [True, False])
def test_without_a_list_only_askers_of_their_own_may_have_tools_of_their_own(
    name: str, like_the_fetch: bool
) -> None:
    """Anybody else gets the same answer for denied and unknown tools: the upstream's own words for
    an unknown one would tell that the denied one is hidden."""
    between = open_session(policy("read", deny="^rm"), like_the_fetch=like_the_fetch)
    between.client.credential = "" if like_the_fetch else "ann"
    verdict = without_list(between, calling(name))
    if name == "read" or (name == "mine" and not like_the_fetch):
        assert verdict == Forward()
    else:
        assert error_in(verdict) == (-32601, f"Tool not found: {shown(name)}")


RESULT = '{"isError":%s,"content":[{"type":"text","text":"%s"}]}'


@pytest.mark.parametrize(
    ("member", "says_unknown"),
    [
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
        ('"result":{"isError":true,"content":7}', False),
        ('"result":7', False),
    ],
)
def test_a_tool_that_the_upstream_does_not_know_is_not_found_in_our_words(
    member: str, says_unknown: bool
) -> None:
    """Only where we had no list to ask: elsewhere each answer passes in its own bytes."""
    answer = f'{{"jsonrpc":"2.0","id":1,{member}}}'.encode()
    in_force = policy("read", deny="^rm")
    ann = open_session(in_force, like_the_fetch=False)
    ann.client.credential = "ann"
    assert without_list(ann, calling("mine")) == Forward()
    verdict = finished(ann.judge_from_upstream(answer)).verdict
    if says_unknown:
        assert error_in(verdict) == (-32601, "Tool not found: mine")
    elif '"result":7' not in member:
        assert verdict == Forward()
    bob = open_session(in_force, like_the_fetch=False)
    listed(bob, listing("mine"))
    assert asked(bob, calling("mine")) == Forward()
    if '"result":7' not in member:
        assert finished(bob.judge_from_upstream(answer)).verdict == Forward()


@pytest.mark.parametrize("is_refusal", [True, False])
def test_calls_wait_once_for_an_upstream_that_does_not_list(is_refusal: bool) -> None:
    """The next ones are judged at once, for a while. A refusal comes soon, and may end soon."""
    in_force = policy("read", deny="^rm")
    now = in_force.clock = Mock(return_value=100.0)
    ann = open_session(in_force, like_the_fetch=False)
    ann.client.credential = "ann"
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
    session = Session(revision=R2024_11_05, is_like_the_fetch=False)
    between = Conversation(in_force, Client(Via.LEGACY_SSE, session))
    assert isinstance(asked(between, calling("rm")), Reply)
    assert waits(between.from_client(calling("mine", id="2"), None, Http()))


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
    ann.client.credential = "ann"
    assert without_list(ann, calling("read")) == Forward()
    refused = asked(ann, calling("rm", id="2"))
    assert isinstance(refused, Reply)
    assert refused.reason.why is Why.DENIED
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
    assert rewritten(verdict) == form % listing("read")


@pytest.mark.parametrize("has_own_tools", [True, False])
@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("via", [Via.WEBSOCKET, Via.LEGACY_SSE])
def test_where_we_cannot_ask_no_tool_of_the_clients_own_is_refused(
    via: Via, is_listed: bool, has_own_tools: bool
) -> None:
    """A client that is nobody else than our fetch has no other tools than that saw; denied and
    unknown ones get the same answer there."""
    pages = (listing("read", "rm"),) if is_listed else ()
    fetched = replace(example(), pages=pages, is_listed=is_listed)
    in_force = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=fetched)
    session = Session(is_like_the_fetch=not has_own_tools)
    credential = "ann" if has_own_tools else ""
    between = Conversation(in_force, Client(via, session, credential=credential))
    for number, name in enumerate(("rm", "read", "mine")):
        verdict = at_once(between.from_client(calling(name, id=str(number)))).verdict
        if name == "read" or (name == "mine" and (has_own_tools or not is_listed)):
            assert verdict == Forward()
        else:
            assert error_in(verdict) == (-32601, f"Tool not found: {name}")
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
