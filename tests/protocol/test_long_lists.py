"""A list that is read in steps is read like a whole one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol import long_lists
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.long_lists import LongList, read_in_steps
from tests.make import answering, definition, listing, message, page

LIMITS = Limits()


def last_of(raw: bytes) -> LongList | None:
    *_, found = [None, *read_in_steps(raw, LIMITS)]
    return found


TOOLS = st.sampled_from([
    definition("a").decode(), definition("\u00e9").decode(),
    definition("b", ',"x":[{"y":1}]').decode(),
    '{"name":"a"}', "{}", "1", '"],["', "[[]]", '{"name":"c","inputSchema":{},"Name":"d"}',
])  # fmt: skip
AROUND = st.sampled_from([
    '{"tools":[%s]}', '{"a":[1,{"tools":[1]}],"tools" : [ %s ] ,"nextCursor":"n"}',
    '{"tools":[%s],"tools":[]}', '{"Tools":[],"tools":[%s]}', '{"tools":{"a":[%s]}}', "[%s]",
    '{"result":{"tools":[]},"tools":[%s],"ttlMs":5}', '{"t\\u006fols":[%s]}', '{"tools":[%s,]}',
    '{"tools":[%s] "x"}', '{"tools":[%s]',
])  # fmt: skip
BEHIND = st.sampled_from(["", " \n", "x", ',"result":{}', "{}"])


@given(tools=st.lists(TOOLS, max_size=8), around=AROUND, behind=BEHIND, step=st.integers(1, 200))
@settings(max_examples=400)
def test_reading_a_list_in_steps_gives_the_same_result(
    tools: list[str], around: str, behind: str, step: int
) -> None:
    raw = answering(around % ",".join(tools)) + behind.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_lists, "_STEP", step)
        try:
            found = last_of(raw)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                page(raw)
            return
    if found is not None:
        whole = message(raw)
        assert found.listing == page(raw)
        assert found.response == whole or found.response.place == whole.place
        assert found.response.result is not None
        assert found.response.result.span == getattr(whole, "result").span  # noqa: B009 - mypy knows no result here


def test_each_step_reads_little() -> None:
    names = [f"tool_{number}" for number in range(3000)]
    raw = listing(*names)
    steps = list(read_in_steps(raw, LIMITS))
    found = steps.pop()
    assert found is not None
    assert [one.name for one in found.listing.definitions] == names
    assert steps == [None] * len(steps)
    assert len(steps) >= 2 * len(raw) // (long_lists._STEP + len(definition(names[-1])) + 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"[" + listing("a") + b"]",
        answering("{}"),
        answering('{"tools":{}}'),
        answering('{"tools":[]}'),
        b'{"jsonrpc":"2.0","method":"x","params":{"tools":[{}]}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{}',
        b"[" * 100_000,
    ],
)
def test_everything_else_is_read_as_usual(raw: bytes) -> None:
    assert last_of(raw) is None


def test_a_list_over_the_limit_is_read_as_usual() -> None:
    raw = listing("a")
    assert list(read_in_steps(raw, Limits(message=len(raw) - 1))) == []
