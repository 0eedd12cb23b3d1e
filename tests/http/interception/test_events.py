"""The first events of a stream are looked at, and none of their bytes is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.http.interception.events import EventPeeker


@given(chunks=st.lists(st.binary(max_size=9) | st.just(b"data: x\n\n")))
def test_events_without_mcp_lose_no_byte(chunks: list[bytes]) -> None:
    peeker, seen = EventPeeker(), b""
    for chunk in chunks:
        passed, rest = peeker.feed(chunk)
        seen += passed
        if rest is not None:
            seen += rest
            break
    else:
        passed, rest = peeker.finish()
        seen += passed + (rest or b"")
    assert b"".join(chunks).startswith(seen)
