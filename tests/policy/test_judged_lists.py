"""Lists that have been judged: they are known again, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from mcp_tool_filter.policy.judged_lists import JudgedLists
from mcp_tool_filter.policy.tool_filter import decide_listing
from mcp_tool_filter.policy.verdict import Forward, Rewrite
from tests.make import answering, definition, listing, message, snapshot

TOOLS = snapshot("read", "rm", deny="^rm")
LAST = b' {"result" : {"tools":[%s,%s]},"jsonrpc":"2.0","id": %s}\n'


def heard(*raws: bytes, judged: JudgedLists | None = None) -> JudgedLists:
    """Let these answers be judged and remembered."""
    judged = judged or JudgedLists()
    for raw in raws:
        verdict = decide_listing(message(raw), TOOLS)
        assert isinstance(verdict, Forward | Rewrite)
        judged.remember(raw, verdict, TOOLS)
    return judged


def last(id: str) -> bytes:
    """Write an answer whose id comes last, as the TypeScript SDK does."""
    return LAST % (definition("rm"), definition("read", ',"title":"\u00e9"'), id.encode())


@pytest.mark.parametrize("first", ["1", '"a"'])
@pytest.mark.parametrize("id", ["0", "2", "1234567890123456", '""', '"a"', '"req:7.b_c-d"'])
def test_the_same_list_with_another_id_is_known(first: str, id: str) -> None:
    judged = heard(listing("rm", "read", id=first), last(first), listing("read", id=first))
    for raw in (listing("rm", "read", id=id), last(id), listing("read", id=id)):
        known = judged.recall(raw, TOOLS)
        assert known is not None
        response, verdict = known
        assert verdict == decide_listing(message(raw), TOOLS)
        assert (response.id, response.place) == (id, message(raw).place)


NUMBERS = ["01", "-1", "1.0", "1e3", "12345678901234567", "null", "true", "{}"]
STRINGS = ['"\\u0061"', '"a\\"b"', '"a"b"', '"a', '" "', '"\u00e9"', '"' + "x" * 65 + '"']


@pytest.mark.parametrize("id", [*NUMBERS, *STRINGS, "", " 1", "1 ", '1,"id":2', "1}"])
def test_a_list_with_an_unusual_id_is_not_known(id: str) -> None:
    judged = heard(listing("rm"), last("1"))
    assert judged.recall(listing("rm", id=id), TOOLS) is None
    assert judged.recall(last(id), TOOLS) is None


@pytest.mark.parametrize(
    "raw",
    [
        listing("rm") + b" ",
        listing("rm") + b"1",
        b" " + listing("rm"),
        listing("rm", more=',"a":1'),
        listing("rm", "read"),
        listing("rn"),
        listing("rm")[:-1],
        b"[" + listing("rm") + b"]",
        listing("rm")[:-1] + b',"id":2}',
        b"",
    ],
)
def test_another_list_is_not_known(raw: bytes) -> None:
    assert heard(listing("rm")).recall(raw, TOOLS) is None


@pytest.mark.parametrize("id", ["1.0", '"\\u0061"', "-1"])
def test_a_list_with_an_unusual_id_is_not_remembered(id: str) -> None:
    assert heard(listing("rm", id=id)).recall(listing("rm", id=id), TOOLS) is None


def test_an_id_deeper_in_the_message_is_a_part_of_it() -> None:
    judged = heard(answering('{"id":1,"tools":[],"x":{"id":1}}'))
    assert judged.recall(answering('{"id":2,"tools":[],"x":{"id":1}}'), TOOLS) is None
    assert judged.recall(answering('{"id":1,"tools":[],"x":{"id":2}}'), TOOLS) is None
    assert judged.recall(answering('{"id":1,"tools":[],"x":{"id":1}}', id="2"), TOOLS) is not None


def test_another_snapshot_knows_no_lists() -> None:
    """The user may have edited the patterns."""
    judged = heard(listing("rm"))
    other = snapshot("read", "rm", deny="^read")
    assert judged.recall(listing("rm"), other) is None
    judged.remember(listing("read"), Forward(), other)
    assert judged.recall(listing("rm"), other) is None
    assert judged.recall(listing("read"), other) is not None


def test_the_least_recently_used_list_is_forgotten_first() -> None:
    judged = heard(listing("a"), listing("b"), judged=JudgedLists(most=2))
    judged.recall(listing("a"), TOOLS)
    heard(listing("c"), judged=judged)
    known = [name for name in "abc" if judged.recall(listing(name), TOOLS)]
    assert known == ["a", "c"]


def test_remembered_lists_are_bounded() -> None:
    size = len(listing("a")) + len(listing()) - 2
    judged = heard(listing("a"), listing("b"), judged=JudgedLists(most_bytes=2 * size))
    assert judged.recall(listing("a"), TOOLS)
    heard(listing("c" * 10), judged=judged)
    assert [bool(judged.recall(listing(name), TOOLS)) for name in "ab"] == [False, False]
    heard(listing("x" * 2 * size), judged=judged)
    assert judged.recall(listing("c" * 10), TOOLS)
