"""Values as mitmproxy's flow dumps hold them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.io import tnetstring

from mcp_tool_filter.adapters.recordings.line_recorder import write_value

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
)


@given(value=VALUES)
def test_mitmproxy_reads_each_value_as_it_was(value: object) -> None:
    assert tnetstring.loads(write_value(value)) == value  # type: ignore[arg-type]  # any of these
