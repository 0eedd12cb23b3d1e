"""The first link of the chain: which tools are listed, which calls go through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tool_filter.core.messages.tool_requests import ListRequest
from mcp_tool_filter.core.policy.situation import Situation
from mcp_tool_filter.core.policy.taking import drift_of, listed_twice
from mcp_tool_filter.core.policy.tool_filter import (
    Envelope,
    decide_call,
    decide_list,
    decide_listing,
)
from mcp_tool_filter.core.policy.verdict import Forward, Reply, Rewrite, Verdict, Why
from tests.make import (
    answering,
    call,
    definition,
    error_in,
    listing,
    listing_of,
    message,
    one_definition,
    snapshot,
    text_of,
)
from tests.rows import each_row

TOOLS = snapshot("read_file", "rm_rf", deny="^rm")
ENVELOPE = Envelope('{"tools":', ',"ttlMs":5}')


@pytest.mark.parametrize(("name", "why"), [("rm_rf", Why.DENIED), ("no_such_tool", Why.UNKNOWN)])
def test_denied_and_unknown_tools_get_the_same_answer(name: str, why: Why) -> None:
    """Nothing may reveal that there is a filter; the reason is for observers."""
    verdict = decide_call(call(name), TOOLS)
    assert error_in(verdict) == (-32601, f"Tool not found: {name}")
    assert isinstance(verdict, Reply)
    assert verdict.reason.why is why


@pytest.mark.parametrize("id", ["1", "1.0", '"a"', "null"])
def test_the_answer_keeps_the_id_byte_for_byte(id: str) -> None:
    assert text_of(decide_call(call("rm_rf", id=id), TOOLS)) == (
        b'{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Tool not found: rm_rf"}}'
        % id.encode()
    )


@each_row("name", ["", "Read_File", "read_file ", "read_file\0", "read_file\n", "ﬁ"])
def test_only_the_exact_name_is_forwarded(name: str) -> None:
    assert isinstance(decide_call(call(name), TOOLS), Reply)


@pytest.mark.parametrize("name", ['"\r\n\x1b[31m', "\ud800", "\u2028", "x" * 1_000_000])
def test_an_unusual_name_is_escaped_and_cut(name: str) -> None:
    text = text_of(decide_call(call(name), TOOLS))
    assert text.isascii()
    assert text.decode().isprintable()
    assert len(text) < 300


KNOWN = Situation(TOOLS, envelope=ENVELOPE, may_use_cache=True)


def listed(situation: Situation, *, cursor: bool = False) -> Verdict:
    return decide_list(ListRequest(id="7", has_cursor=cursor, revision=None), situation)


def test_a_list_is_answered_from_the_snapshot_in_the_frame_of_its_revision() -> None:
    assert text_of(listed(KNOWN)) == listing("read_file", id="7", more=',"ttlMs":5')


@pytest.mark.parametrize(("situation", "cursor"), [
    (KNOWN, True), (replace(KNOWN, envelope=None), False),
    (replace(KNOWN, may_use_cache=False), False),
])  # fmt: skip
def test_a_list_is_forwarded_where_ours_might_differ(situation: Situation, cursor: bool) -> None:
    assert listed(situation, cursor=cursor) == Forward()


def test_a_frame_that_shows_a_hidden_tool_is_not_used() -> None:
    """The user may have denied it after the frame was learned."""
    copy = ',"_meta":{"copy":[' + definition("rm_rf").decode() + "]}"
    envelope, earlier = Envelope('{"tools":', copy + "}"), snapshot("read_file", "rm_rf", deny="^x")
    for now, kind in ((earlier, Reply), (earlier, Reply), (TOOLS, Forward), (TOOLS, Forward)):
        assert isinstance(listed(replace(KNOWN, snapshot=now, envelope=envelope)), kind)


NEW, CHANGED = definition("new"), definition("read_file", ',"title":"x"')
SPELLED = answering('{"tools":[{"inputSchema":{"type":"object"}, "name":"read_\\u0066ile"}]}')
TWICE = listing("read_file", "read_file", "rm_rf", "rm_rf")


@pytest.mark.parametrize(("answer", "hidden", "noticed"), [
    (listing("rm_rf", "read_file", "rm_all"), ("rm_rf", "rm_all"), []),
    (listing("read_file", "new"), ("new",), [drift_of(one_definition(NEW), TOOLS)]),
    # Clients may take either definition; of tools that are hidden, nothing is said
    (TWICE, ("rm_rf", "rm_rf"), [listed_twice("read_file")]),
    (listing_of(CHANGED), (), [drift_of(one_definition(CHANGED), TOOLS)]),
    (SPELLED, (), []),  # both ways of answering give the same bytes
])  # fmt: skip
def test_only_the_exposed_tools_of_the_snapshot_are_listed(
    answer: bytes, hidden: tuple[str, ...], noticed: list[str]
) -> None:
    verdict = decide_listing(message(answer), TOOLS)
    assert isinstance(verdict, Rewrite)
    assert verdict.text == listing("read_file")
    assert (verdict.reason.tools, [*verdict.reason.drift]) == (hidden, noticed)


RM = definition("rm_rf").decode()


@pytest.mark.parametrize("raw", [
    b'{"jsonrpc":"2.0","method":"notifications/x","params":{"tools":[%s]}}',
    b'{"jsonrpc":"2.0","id":1,"method":"vendor/x","params":{"tools":[%s]}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"tools":[%s]}}',
])  # fmt: skip
def test_an_unrequested_list_is_filtered(raw: bytes) -> None:
    verdict = decide_listing(message(raw % RM.encode()), TOOLS, expected=False)
    assert text_of(verdict) == raw % b""


@each_row("result", [
    f'{{"structuredContent":{{"tools":[{RM}]}},"content":[]}}',
    f'{{"content":[{{"type":"text","text":"{{\\"tools\\":[]}}"}},{{"resource":{RM}}}]}}',
    f'{{"contents":[{{"uri":"x","text":"x","_meta":{RM}}}]}}',
    f'{{"messages":[{RM}]}}',
    f'{{"resultType":"input_required","inputRequests":{{"a":{{"params":{{"tools":[{RM}]}}}}}}}}',
    '{"prompts":[{"name":"rm_rf"}],"resources":[{"name":"rm_rf","uri":"x"}]}',
    '{"capabilities":{"tools":{"listChanged":true}}}',
    '{"tools":["rm_rf"]}', '{"tools":{}}', '{"tools":3}', '{"tools":[]}',
    '{"agents":[{"name":"new","inputSchema":{}}]}',
    '{"tools":[{"id":1}]}',
])  # fmt: skip
def test_messages_without_tools_pass_unchanged(result: str) -> None:
    """What tools, resources and prompts say is theirs; a member ``tools`` may mean other tools."""
    verdict = decide_listing(message(answering(result)), TOOLS, expected=False)
    assert verdict == Forward()
