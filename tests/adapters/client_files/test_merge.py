"""Two changes of one text, and comments that would be lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.client_files.files import merged, with_comments_of

lines = st.lists(st.sampled_from(["a\n", "b\n", "# c\n", "\n"]), max_size=6).map("".join)


@given(base=lines, changed=lines)
def test_a_single_change_is_merged(base: str, changed: str) -> None:
    assert merged(base, changed, base) == changed
    assert merged(base, base, changed) == changed


@pytest.mark.parametrize(
    ("one", "other"),
    [("1\nB\n3\n", "1\nX\n3\n"), ("1\n3\n", "1\nX\n3\n"), ("1\n2\n3\na\n", "1\n2\n3\nb\n")],
)
def test_two_changes_of_the_same_lines_are_not_merged(one: str, other: str) -> None:
    assert merged("1\n2\n3\n", one, other) is None


@given(old=lines, new=lines)
def test_merging_loses_no_comment_and_adds_nothing(old: str, new: str) -> None:
    text = with_comments_of(old, new)
    rest = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
    assert rest == [line for line in new.splitlines() if line.strip() and line[0] != "#"]
    assert ("#" in text) == ("#" in old + new)
