"""A pattern for just the tools that were picked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.policy.exact import deny_for
from mcp_tool_filter.policy.patterns import parse_pattern, split_patterns

_WORDS = st.sampled_from(["read", "write", "delete", "file", "user", "get", "all"])
_NAMES = (
    st.builds("_".join, st.lists(_WORDS, min_size=1, max_size=3))
    | st.builds("".join, st.lists(_WORDS.map(str.title), min_size=1, max_size=3))
    | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
)


@given(st.lists(_NAMES, min_size=1, max_size=12, unique=True), st.data())
def test_the_pattern_matches_exactly_the_picked_tools(
    names: list[str], data: st.DataObject
) -> None:
    hidden = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    text = deny_for(hidden, names)
    assert split_patterns(text) == [text]
    assert [name for name in names if parse_pattern(text).matches(name)] == [
        name for name in names if name in hidden
    ]
