"""What becomes of a message, by whatever way it comes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.chain import (
    decide_from_client,
    decide_from_upstream,
    join_from_client,
    join_from_upstream,
    keep_space,
    refusal,
)
from mcp_tool_filter.policy.exchange import Exchange, Situation
from mcp_tool_filter.policy.tool_filter import Envelope
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import Batch, parse_message
from tests.make import (
    answering,
    asking,
    at_once,
    calling,
    definition,
    error_in,
    listing,
    snapshot,
    text_of,
)

TOOLS = snapshot("read", "rm", deny="^rm")
KNOWN = Situation(snapshot=TOOLS, envelope=Envelope('{"tools":', "}"), may_use_cache=True)
RM = definition("rm").decode()


def ask(raw: bytes, situation: Situation = KNOWN) -> Verdict:
    parsed = parse_message(raw)
    if not isinstance(parsed, Batch):
        verdict: Verdict = at_once(decide_from_client(parsed, situation))
        return verdict
    verdicts = [at_once(decide_from_client(one, situation)) for one in parsed.members]
    return join_from_client(parsed, verdicts)


def hear(raw: bytes, asked: str | None = None) -> Verdict:
    parsed = parse_message(raw)
    situation = replace(KNOWN, exchange=Exchange(asked) if asked else None)
    if not isinstance(parsed, Batch):
        verdict: Verdict = at_once(decide_from_upstream(parsed, situation))
        return keep_space(raw.decode(), verdict)
    verdicts = [at_once(decide_from_upstream(one, situation)) for one in parsed.members]
    return join_from_upstream(parsed, verdicts)


def batch(*members: bytes) -> bytes:
    return b"[" + b",".join(members) + b"]"


def test_an_allowed_call_is_forwarded_and_a_denied_one_answered() -> None:
    assert ask(calling("read")) == Forward()
    assert error_in(ask(calling("rm"))) == (-32601, "Tool not found: rm")


def test_a_list_is_answered_from_the_snapshot() -> None:
    assert text_of(ask(asking("tools/list"))) == listing("read")


def test_a_list_is_forwarded_where_the_situation_does_not_allow_the_cache() -> None:
    assert ask(asking("tools/list"), Situation(snapshot=TOOLS)) == Forward()


@pytest.mark.parametrize(
    "raw",
    [
        asking("initialize"),
        asking("ping", id='"a"'),
        asking("prompts/get", params='{"name":"rm"}'),
        asking("resources/read", params='{"uri":"rm"}'),
        asking("completion/complete", params='{"ref":{"name":"rm"},"name":"a","NAME":"b"}'),
        asking("vendor.acme/custom", params='{"name":"rm","tools":[' + RM + "]}"),
        asking("tasks/result", params='{"taskId":"rm"}'),
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        answering('{"role":"assistant","content":{"type":"tool_use","name":"rm"}}'),
        answering('{"action":"accept","content":{"name":"rm"}}'),
        answering('{"roots":[]}'),
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"User rejected"}}',
    ],
)
def test_all_other_client_messages_are_forwarded(raw: bytes) -> None:
    assert ask(raw) == Forward()


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
    assert isinstance(verdict, Reply)
    assert [answer["id"] for answer in json.loads(verdict.text)] == [1, 2]


def test_a_batch_of_denied_notifications_is_dropped() -> None:
    denied = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"rm"}}'
    assert isinstance(ask(batch(denied)), Drop)


def test_a_batch_of_allowed_messages_is_forwarded_unchanged() -> None:
    assert ask(batch(calling("read"), asking("ping"))) == Forward()


def test_a_batch_with_one_unjudgeable_member_is_refused_whole() -> None:
    with pytest.raises(ProtocolError):
        ask(batch(asking("ping"), asking("tools/call", params='{"name":"read","NAME":"rm"}')))


@pytest.mark.parametrize("asked", ["tools/list", "initialize", "tools/call", "tasks/result", None])
def test_a_list_is_filtered_whichever_request_it_answers(asked: str | None) -> None:
    """A second answer, a late one, one after Last-Event-ID, one to an id of another type."""
    assert text_of(hear(listing("read", "rm"), asked)) == listing("read")


@pytest.mark.parametrize("asked", ["tools/list", None])
def test_an_ambiguous_list_is_refused(asked: str | None) -> None:
    with pytest.raises(ProtocolError):
        hear(answering('{"tools":{"x":1}}'), asked)


@pytest.mark.parametrize("asked", ["vendor/x", "tools/call", "initialize"])
def test_other_results_may_have_a_tools_member(asked: str) -> None:
    assert hear(answering('{"tools":{"hammer":1}}'), asked) == Forward()


def test_the_tools_of_a_sampling_request_are_not_filtered() -> None:
    raw = asking("sampling/createMessage", params='{"messages":[],"tools":[' + RM + "]}")
    assert hear(raw) == Forward()


@pytest.mark.parametrize(
    "raw",
    [
        answering('{"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"rm"}}'),
        answering('{"content":[],"structuredContent":{"tools":[' + RM + "]}}"),
        answering("{}", id='"a"'),
        answering("null"),
        answering('"inputSchema"'),
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}',
        b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1.00}}',
        asking("elicitation/create", params='{"message":"rm?"}'),
        asking("roots/list", id='"x"'),
        asking("ping"),
    ],
)
def test_all_other_upstream_messages_are_forwarded(raw: bytes) -> None:
    assert hear(raw, "initialize") == Forward()


def test_a_batch_from_the_upstream_is_filtered_member_by_member() -> None:
    other = answering('{ "x" : 1.0 }', id="2")
    verdict = hear(batch(listing("read", "rm"), other))
    assert text_of(verdict) == batch(listing("read"), other)


def test_each_answer_in_a_batch_is_judged_by_what_it_answers() -> None:
    assert hear(batch(answering('{"tools":{"hammer":1}}')), "vendor/x") == Forward()


def test_a_refusal_answers_all_waiting_requests() -> None:
    reply = refusal(b'[{"id":1},{"id":"b"}]', Why.MALFORMED)
    assert [answer["id"] for answer in json.loads(reply.text)] == [1, "b"]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"id":1,"id":2}', b'{"id":{}}'])
def test_a_refusal_without_a_waiting_request_has_no_id(raw: bytes) -> None:
    assert json.loads(refusal(raw, Why.MALFORMED).text)["id"] is None


@pytest.mark.parametrize(("before", "after"), [("", "\n"), (" \r\n", ""), ("\t", " \n\n")])
@pytest.mark.parametrize("batch", [False, True])
def test_a_rewritten_list_keeps_the_white_space_around_it(
    before: str, after: str, batch: bool
) -> None:
    def written(raw: bytes) -> bytes:
        return before.encode() + (b"[" + raw + b"]" if batch else raw) + after.encode()

    verdict = hear(written(listing("read", "rm")))
    assert text_of(verdict) == written(listing("read"))
