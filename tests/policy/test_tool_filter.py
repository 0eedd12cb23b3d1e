"""The first link of the chain: which tools are listed, which calls go through."""

from __future__ import annotations

import pytest

from mcp_tool_filter.policy.config import ListFrom
from mcp_tool_filter.policy.exchange import Situation
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.tool_filter import Envelope, decide_call, decide_list, decide_listing
from mcp_tool_filter.policy.verdict import Forward, Reply, Rewrite, Verdict
from mcp_tool_filter.protocol.tools import ListRequest
from tests.make import (
    answering,
    call,
    definition,
    error_in,
    listing,
    message,
    page,
    snapshot,
    text_of,
)

TOOLS = snapshot("read_file", "rm_rf", deny="^rm")
ENVELOPE = Envelope('{"tools":', ',"ttlMs":5}')

NEW_TOOL = (
    "the upstream has a new tool new: hidden until you restart the filter; "
    "with --new-tools judge, the patterns decide about new tools"
)


@pytest.mark.parametrize("name", ["rm_rf", "no_such_tool"])
def test_denied_and_unknown_tools_get_the_same_answer(name: str) -> None:
    """Nothing may reveal that there is a filter."""
    verdict = decide_call(call(name), TOOLS)
    assert error_in(verdict) == (-32601, f"Tool not found: {name}")


@pytest.mark.parametrize("id", ["1", "1.0", '"a"', "null"])
def test_the_answer_keeps_the_id_byte_for_byte(id: str) -> None:
    assert text_of(decide_call(call("rm_rf", id=id), TOOLS)) == (
        b'{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Tool not found: rm_rf"}}'
        % id.encode()
    )


@pytest.mark.parametrize("name", ["", "Read_File", "read_file ", "read_file\0", "read_file\n", "ﬁ"])
def test_only_the_exact_name_is_forwarded(name: str) -> None:
    assert isinstance(decide_call(call(name), TOOLS), Reply)


@pytest.mark.parametrize("name", ['"\r\n\x1b[31m', "\ud800", "\u2028", "x" * 1_000_000])
def test_an_unusual_name_is_escaped_and_cut(name: str) -> None:
    text = text_of(decide_call(call(name), TOOLS))
    assert text.isascii()
    assert text.decode().isprintable()
    assert len(text) < 300


def ask(**kinds: bool) -> ListRequest:
    return ListRequest(id="7", has_cursor=kinds.get("cursor", False), revision=None)


def listed(
    asked: ListRequest,
    known: Snapshot,
    envelope: Envelope | None,
    list_from: ListFrom = ListFrom.AUTO,
    *,
    sound: bool = True,
) -> Verdict:
    situation = Situation(known, envelope=envelope, list_from=list_from, may_use_cache=sound)
    return decide_list(asked, situation)


def test_a_list_is_answered_from_the_snapshot_in_the_frame_of_its_revision() -> None:
    verdict = listed(ask(), TOOLS, ENVELOPE)
    assert text_of(verdict) == listing("read_file", id="7", more=',"ttlMs":5')


@pytest.mark.parametrize(
    ("asked", "envelope", "sound"),
    [(ask(cursor=True), ENVELOPE, True), (ask(), None, True), (ask(), ENVELOPE, False)],
)
def test_a_list_is_forwarded_where_ours_might_differ(
    asked: ListRequest, envelope: Envelope | None, sound: bool
) -> None:
    verdict = listed(asked, TOOLS, envelope, sound=sound)
    assert verdict == Forward()


def test_the_user_can_always_have_the_upstreams_list() -> None:
    verdict = listed(ask(), TOOLS, ENVELOPE, ListFrom.UPSTREAM)
    assert verdict == Forward()


def test_the_user_can_always_have_our_list() -> None:
    asked = ask(cursor=True)
    verdict = listed(asked, TOOLS, None, ListFrom.CACHE, sound=False)
    assert text_of(verdict) == listing("read_file", id="7")


def test_a_frame_that_shows_a_hidden_tool_is_not_used() -> None:
    """The user may have denied it after the frame was learned."""
    copy = ',"_meta":{"copy":[' + definition("rm_rf").decode() + "]}"
    assert page(listing(more=copy)).frame is None
    envelope, earlier = Envelope('{"tools":', copy + "}"), snapshot("read_file", "rm_rf", deny="^x")
    for now, is_used in ((earlier, True), (earlier, True), (TOOLS, False), (TOOLS, False)):
        verdict = listed(ask(), now, envelope)
        assert isinstance(verdict, Reply if is_used else Forward)


def test_a_denied_tool_is_hidden_from_a_list() -> None:
    verdict = decide_listing(message(listing("rm_rf", "read_file", "rm_all")), TOOLS)
    assert text_of(verdict) == listing("read_file")
    assert isinstance(verdict, Rewrite)
    assert verdict.reason.tools == ("rm_rf", "rm_all")


def test_a_tool_that_appears_later_is_not_exposed_and_noticed() -> None:
    verdict = decide_listing(message(listing("read_file", "new")), TOOLS)
    assert text_of(verdict) == listing("read_file")
    assert isinstance(verdict, Rewrite)
    assert verdict.reason.drift == (NEW_TOOL,)


def test_an_exposed_tool_that_is_listed_twice_is_noticed() -> None:
    """Clients may take either definition; of tools that are hidden, nothing is said."""
    verdict = decide_listing(message(listing("read_file", "read_file", "rm_rf", "rm_rf")), TOOLS)
    assert text_of(verdict) == listing("read_file")
    assert isinstance(verdict, Rewrite)
    (twice,) = verdict.reason.drift
    assert "read_file" in twice


def test_a_tool_that_changes_keeps_its_definition_and_is_noticed() -> None:
    changed = answering('{"tools":[' + definition("read_file", ',"title":"x"').decode() + "]}")
    verdict = decide_listing(message(changed), TOOLS)
    assert text_of(verdict) == listing("read_file")
    assert isinstance(verdict, Rewrite)
    assert verdict.reason.drift == (
        "the upstream changed the tool read_file: still serving the version seen at start-up",
    )


def test_another_spelling_of_a_definition_is_no_change() -> None:
    """Both ways of answering give the same bytes."""
    written = b'{"tools":[{"inputSchema":{"type":"object"}, "name":"read_\\u0066ile"}]}'
    verdict = decide_listing(message(answering(written.decode())), TOOLS)
    assert text_of(verdict) == listing("read_file")
    assert isinstance(verdict, Rewrite)
    assert verdict.reason.drift == ()


RM = definition("rm_rf").decode()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"jsonrpc":"2.0","method":"notifications/x","params":{"tools":[%s]}}',
        b'{"jsonrpc":"2.0","id":1,"method":"vendor/x","params":{"tools":[%s]}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"tools":[%s]}}',
    ],
)
def test_an_unrequested_list_is_filtered(raw: bytes) -> None:
    verdict = decide_listing(message(raw % RM.encode()), TOOLS, expected=False)
    assert text_of(verdict) == raw % b""


@pytest.mark.parametrize(
    "result",
    [
        f'{{"structuredContent":{{"tools":[{RM}]}},"content":[]}}',
        f'{{"content":[{{"type":"text","text":"{{\\"tools\\":[]}}"}},{{"resource":{RM}}}]}}',
        f'{{"contents":[{{"uri":"x","text":"x","_meta":{RM}}}]}}',
        f'{{"messages":[{RM}]}}',
        f'{{"resultType":"input_required","inputRequests":{{"a":{{"params":{{"tools":[{RM}]}}}}}}}}',
        '{"prompts":[{"name":"rm_rf"}],"resources":[{"name":"rm_rf","uri":"x"}]}',
        '{"capabilities":{"tools":{"listChanged":true}}}',
        '{"tools":["rm_rf"]}',
        '{"tools":{}}',
        '{"tools":3}',
        '{"tools":[]}',
        '{"agents":[{"name":"new","inputSchema":{}}]}',
        '{"tools":[{"id":1}]}',
    ],
)
def test_messages_without_tools_pass_unchanged(result: str) -> None:
    """What tools, resources and prompts say is theirs; a member ``tools`` may mean other tools."""
    verdict = decide_listing(message(answering(result)), TOOLS, expected=False)
    assert verdict == Forward()
