"""The trace context of a message: what counts as one, and what of it changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.watch.tracing import context_in, context_of, replace_parents
from mcp_tool_filter.protocol.messages import Request, parse_message

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        CONTEXT.upper(),
        CONTEXT[:-1],
        CONTEXT + "-more",
        "ff" + CONTEXT[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        "01" + CONTEXT[2:] + "-" + "x" * 600,
    ],
)
def test_invalid_trace_headers_are_no_context(traceparent: str | None) -> None:
    assert context_of(traceparent) is None


def test_a_later_version_may_say_more_and_a_long_state_is_left_out() -> None:
    later = context_of("01" + CONTEXT[2:] + "-more", "a=" + "b" * 600)
    assert later
    assert (later.trace_id, later.tracestate) == ("4bf92f3577b34da6a3ce929d0e0e4736", "")
    assert context_of(CONTEXT, "a=b") == context_of(CONTEXT, "a=b")


@given(space=st.text(" \t\r\n", max_size=3), name=st.text(max_size=20))
def test_only_the_parents_id_changes(space: str, name: str) -> None:
    meta = f'{{{space}"traceparent"{space}:{space}"{CONTEXT}"}}'
    params = f'{{"x":{json.dumps(name, ensure_ascii=False)},"_meta":{meta}{space}}}'
    text = f'{space}{{"jsonrpc":"2.0","id":1,"method":"ping","params":{params}}}{space}'
    message = parse_message(text.encode())
    assert isinstance(message, Request)
    context = context_in(message)
    assert context
    changed = replace_parents(text, [(context, "f" * 16)])
    assert changed == text.replace("00f067aa0ba902b7", "f" * 16).encode()
