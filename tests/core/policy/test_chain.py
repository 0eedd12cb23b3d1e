"""What becomes of a message, by whatever way it comes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mcp_tool_filter.core.messages.messages import Batch, parse_message
from mcp_tool_filter.core.policy.chain import (
    decide_from_client,
    decide_from_upstream,
    join_from_client,
    join_from_upstream,
    keep_space,
)
from mcp_tool_filter.core.policy.situation import RpcExchange, Situation
from mcp_tool_filter.core.policy.tool_filter import Envelope
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from tests.make import (
    answering,
    asking,
    at_once,
    calling,
    definition,
    listing,
    replied,
    snapshot,
    text_of,
)
from tests.rows import each_row

TOOLS = snapshot("read", "rm", deny="^rm")
KNOWN = Situation(snapshot=TOOLS, envelope=Envelope('{"tools":', "}"), may_use_cache=True)
RM = definition("rm").decode()


def ask(raw: bytes) -> Verdict:
    parsed = parse_message(raw)
    members = parsed.members if isinstance(parsed, Batch) else [parsed]
    verdicts: list[Verdict] = [at_once(decide_from_client(one, KNOWN)) for one in members]
    return join_from_client(parsed, verdicts) if isinstance(parsed, Batch) else verdicts[0]


def hear(raw: bytes, asked: str | None = None) -> Verdict:
    parsed = parse_message(raw)
    situation = replace(KNOWN, exchange=RpcExchange(asked) if asked else None)
    members = parsed.members if isinstance(parsed, Batch) else [parsed]
    verdicts: list[Verdict] = [at_once(decide_from_upstream(one, situation)) for one in members]
    if isinstance(parsed, Batch):
        return join_from_upstream(parsed, verdicts)
    return keep_space(raw.decode(), verdicts[0])


def batch(*members: bytes) -> bytes:
    return b"[" + b",".join(members) + b"]"


def test_a_batch_loses_its_denied_members_and_their_answers_are_added_later() -> None:
    ping, denied, allowed = asking("ping", id="1.0"), calling("rm", id="2"), calling("read", id="3")
    verdict = ask(batch(ping, denied, allowed))
    assert isinstance(verdict, Rewrite)
    assert verdict.text == batch(ping, allowed)
    assert verdict.owed == (text_of(ask(denied)),)
    assert verdict.reason.tools == ("rm",)


def test_the_reason_of_a_batch_names_all_rules_that_decided() -> None:
    batch = parse_message(b'[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"b"}]')
    assert isinstance(batch, Batch)
    refused: list[Verdict] = [
        Reply(b"{}", Reason(Why.BLOCKED, detail="no", rule="r1")),
        Drop(Reason(Why.BLOCKED, detail="neither", rule="r2")),
    ]
    joined = join_from_client(batch, refused)
    assert isinstance(joined, Reply)
    assert (joined.reason.detail, joined.reason.rule) == ("no", "r1, r2")


def test_a_batch_of_denied_calls_gets_our_own_answer() -> None:
    verdict = ask(batch(calling("rm", id="1"), calling("x", id="2")))
    assert [answer["id"] for answer in json.loads(replied(verdict))] == [1, 2]


def test_a_batch_of_denied_notifications_is_dropped() -> None:
    denied = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"rm"}}'
    assert isinstance(ask(batch(denied)), Drop)


@pytest.mark.parametrize("asked", ["tools/list", "initialize", "tools/call", "tasks/result", None])
def test_a_list_is_filtered_whichever_request_it_answers(asked: str | None) -> None:
    """A second answer, a late one, one after Last-Event-ID, one to an id of another type."""
    assert text_of(hear(listing("read", "rm"), asked)) == listing("read")


@pytest.mark.parametrize("asked", ["vendor/x", "tools/call", "initialize"])
def test_other_results_may_have_a_tools_member(asked: str) -> None:
    assert hear(answering('{"tools":{"hammer":1}}'), asked) == Forward()


def test_what_a_client_answers_to_the_upstream_passes() -> None:
    for answer in (answering('{"roots":[]}'), answering('{"tools":[' + RM + "]}")):
        assert ask(answer) == Forward()


def test_the_tools_of_a_sampling_request_are_not_filtered() -> None:
    raw = asking("sampling/createMessage", params='{"messages":[],"tools":[' + RM + "]}")
    assert hear(raw) == Forward()


@each_row(("before", "after"), [("", "\n"), (" \r\n", ""), ("\t", " \n\n")])
@each_row("batch", [False, True])
def test_a_rewritten_list_keeps_its_white_space(before: str, after: str, batch: bool) -> None:
    def written(raw: bytes) -> bytes:
        return before.encode() + (b"[" + raw + b"]" if batch else raw) + after.encode()

    verdict = hear(written(listing("read", "rm")))
    assert text_of(verdict) == written(listing("read"))
