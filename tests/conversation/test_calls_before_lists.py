"""A client that has not listed yet: denied tools are not found; other calls wait for its list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.effects import CannotList, FetchTools, waits
from mcp_tool_filter.policy.verdict import Forward, Reply, Rewrite, Verdict
from tests.conversation.asking_kinds import LIST, Http, asked, finished, listed, open_session
from tests.conversation.test_conversation import Linked
from tests.make import answering, asking, calling, error_in, listing, policy, text_of


@pytest.mark.parametrize(
    ("tool", "is_there"), [("read", True), ("no_such_tool", False), ("rm_rf", False), ("rm", False)]
)
def test_every_name_waits_for_the_clients_list(tool: str, is_there: bool) -> None:
    """If only denied names were refused at once, the time would tell them from unknown ones."""
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


def without_list(between: Conversation, raw: bytes) -> Verdict:
    """Let the client call while our own request for its list fails."""
    waiting = between.from_client(raw, None, Http())
    assert waits(waiting)
    next(waiting)
    with pytest.raises(StopIteration) as made:
        waiting.throw(CannotList("401"))
    verdict: Verdict = made.value.value.verdict
    return verdict


NAMES = pytest.mark.parametrize("name", ["read", "rm", "no_such_tool"])


@NAMES
def test_the_upstream_says_why_it_does_not_list_whatever_the_call(name: str) -> None:
    """For example with a 401 that says where to log in. It never sees the call."""
    between = open_session(policy("read", deny="^rm"))
    verdict = without_list(between, calling(name, id="7"))
    assert text_of(verdict) == asking("tools/list", id="7")
    error = b'{"jsonrpc":"2.0","id":7,"error":{"code":-32001,"message":"log in first"}}'
    assert finished(between.from_upstream(error)).verdict == Forward()
    assert between.waiting == []


@NAMES
@pytest.mark.parametrize(
    "result", ['{"content":[{"type":"text","text":"Unknown tool"}]}', '{"tools":[]}', "{}"]
)
def test_another_answer_than_the_list_tells_nothing_of_the_tool(name: str, result: str) -> None:
    between = open_session(policy("read", deny="^rm"))
    without_list(between, calling(name, id="7"))
    verdict = finished(between.from_upstream(answering(result, id="7"))).verdict
    assert error_in(verdict) == (-32601, f"Tool not found: {name}")


def test_a_list_that_comes_after_all_is_learned() -> None:
    between = open_session(policy("other", deny="^rm"))
    without_list(between, calling("read", id="7"))
    verdict = finished(between.from_upstream(listing("read", "rm", id="7"))).verdict
    assert error_in(verdict)[0] == -32603
    assert asked(between, calling("read", id="8")) == Forward()
    assert error_in(asked(between, calling("rm", id="9"))) == (-32601, "Tool not found: rm")


def test_what_a_client_says_of_itself_is_in_the_request_for_the_list() -> None:
    between = open_session(policy("read"))
    call = '{"name":"read","_meta":{"io.modelcontextprotocol/x": 1.50}}'
    verdict = without_list(between, asking("tools/call", params=call))
    meta = '{"_meta":{"io.modelcontextprotocol/x": 1.50}}'
    assert text_of(verdict) == asking("tools/list", params=meta)


def test_an_upstream_that_lists_only_to_users_has_no_snapshot_at_start() -> None:
    fetched = replace(example(), pages=(), is_listed=False)
    in_force = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=fetched)
    ann = open_session(in_force, like_the_fetch=False)
    assert text_of(without_list(ann, calling("rm"))) == LIST
    ann.lose()
    assert listed(ann, listing("read", "rm", id="5"), id="5") == listing("read", id="5")
    assert isinstance(asked(Conversation(in_force), calling("rm", id="6")), Reply)


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
