"""What a table of edits may say, and which of several tables counts."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tool_filter.rooms.edits.tables import BadEdit, parse_edits
from tests.rows import each_row


def test_exact_beats_glob_and_own_beats_all() -> None:
    for_all = parse_edits({"a": {"title": "all", "description": "all"}, "*": {"title": "glob"}})
    edits = parse_edits({"a": {"title": "own"}, "a*": {"schema": "flat"}}, more=for_all)
    edit = edits.for_tool("a")
    assert (edit.title, edit.description, edit.flat) == ("own", "all", True)
    assert edits.for_tool("b").title == "glob"


def test_two_globs_that_disagree_are_an_error_of_the_tool_that_both_match() -> None:
    edits = parse_edits({"a*": {"title": "1"}, "*b": {"title": "2"}})
    assert edits.for_tool("ax").title == "1"
    with pytest.raises(BadEdit, match="disagree about ab"):
        edits.for_tool("ab")


def test_variables_expand_at_every_depth_of_a_fixed_value() -> None:
    tables = {"a": {"fix": {"p": {"$K": ["x-$TEAM", "$$5", "${TEAM}"]}}, "meta": {"m": "$TEAM"}}}
    edit = parse_edits(tables, {"TEAM": "t"}).for_tool("a")
    assert edit.fix == {"p": '{"$K": ["x-t", "$5", "t"]}'}
    assert edit.meta == {"m": '"$TEAM"'}


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"a": {}}, "changes nothing"),
    ({"a": "b"}, "must be a table"),
    ({"a": {"titel": "x"}}, "did you mean title?"),
    ({"a": {"name": "has space"}}, "cannot call a tool"),
    ({"a": {"name": ""}}, "cannot call a tool"),
    ({"a": {"name": "x" * 129}}, "cannot call a tool"),
    ({"a*": {"name": "x"}}, "cannot set name"),
    ({"a": {"name": "b"}, "b": {"name": "a"}}, "Names cannot be swapped"),
    ({"a": {"name": "x"}, "b": {"name": "x"}}, "the same name"),
    ({"a": {"hints": {"readonly": True}}}, "did you mean read-only?"),
    ({"a": {"hints": {"read-only": "yes"}}}, "is not true or false"),
    ({"a": {"fix": {"p": "$NOT_SET"}}}, "NOT_SET is not set"),
    ({"a": {"fix": {"p": 1}, "drop": ["p"]}}, "fixes and drops p"),
    ({"a": {"schema": "round"}}, "must be flat"),
    ({"a": {"drop": "p"}}, "must be a list"),
    ({"a": {"title": 1}}, "must be a text"),
]


@each_row("tables, says", MISTAKES)
def test_a_mistake_names_its_table(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(BadEdit) as raised:
        parse_edits(tables, {}, section="servers.linear.tools")
    assert says in str(raised.value)
    assert "servers.linear.tools" in str(raised.value)
