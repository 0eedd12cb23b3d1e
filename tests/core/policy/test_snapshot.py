"""The upstream's tools: allowed, denied, and what cannot be exposed."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.policy.patterns import MAX_NAME, Pattern
from mcp_tool_filter.core.policy.snapshot import Standing, shown
from mcp_tool_filter.core.policy.taking import UnlistedTools, drift_of
from mcp_tool_filter.core.policy.tool_filter import decide_call
from mcp_tool_filter.core.policy.verdict import Reply
from mcp_tool_filter.core.process.sentences import describe
from tests.make import (
    call,
    definition,
    listing,
    listing_of,
    one_definition,
    page,
    snapshot,
    snapshot_of,
)
from tests.rows import each_row

NEW_TOOL = (
    "the upstream has a new tool new: hidden until you restart the filter; "
    "with --new-tools judge, the patterns decide about new tools"
)


def test_allowed_tools_keep_their_bytes_and_order() -> None:
    raw = [b'{"inputSchema":{ } ,"name":"b"}', definition("a", ',"x":1.00')]
    taken = snapshot_of(listing_of(*raw).replace(b"},{", b"} , {"))
    assert taken.allowed.tools == b"[" + b",".join(raw) + b"]"
    assert list(taken.allowed) == ["b", "a"]


def test_a_pattern_that_matches_nothing_is_reported() -> None:
    assert [one.text for one in snapshot("a", deny="^b,^a", allow="c").unmatched] == ["^b", "c"]


def test_the_first_of_two_definitions_counts() -> None:
    taken = snapshot_of(listing_of(definition("a", ',"x":1'), definition("a")))
    assert taken.allowed["a"] == definition("a", ',"x":1')
    what, advice = (
        "the first definition counts",
        "to get both, give each its own name in the upstream",
    )
    assert taken.faults == (f"the upstream lists a twice: {what}; {advice}",)


@pytest.mark.parametrize(("letter", "most"), [("x", 256), ("\U0001f600", 128)])
def test_overlong_names_are_not_matched_and_not_exposed(letter: str, most: int) -> None:
    """JavaScript counts UTF-16 units."""
    taken = snapshot(letter * most, letter * (most + 1))
    assert list(taken.allowed) == [letter * most]
    assert "is longer than 256 characters: not exposed" in taken.faults[0]


@pytest.mark.parametrize("more", [
    ',"_meta":{"copy":{"name":"rm","inputSchema":{}}}',
    ',"tools":[{"name":"rm","inputSchema":{}}]',
    ',"_meta":{"tools":{"rm":{"description":"x","inputSchema":{}}}}',
    ',"outputSchema":{"x-tools":[{"name":"rm","inputSchema":{}}]}',
    ',"annotations":{"x":[[{"NAME":"rm","input\\u0053chema":{}}]]}',
])  # fmt: skip
def test_an_allowed_tool_that_contains_a_denied_definition_is_not_exposed(more: str) -> None:
    taken = snapshot_of(listing_of(definition("a", more)), listing("rm", "b"), deny="^rm")
    assert list(taken.allowed) == ["b"]
    assert taken.faults == ("the tool a has the definition of another tool: not exposed",)


@pytest.mark.parametrize("more", [
    ',"description":"unlike rm","_meta":{"see":{"name":"rm"}}',
    ',"tools":[{"name":"rm"}]',
    ',"_meta":{"tools":{"rm":{"description":"x"}}}',
    ',"outputSchema":{"properties":{"tools":{"default":[{"name":"rm","inputSchema":{}}]}}}',
])  # fmt: skip
def test_an_allowed_tool_may_mention_a_denied_one(more: str) -> None:
    taken = snapshot_of(listing_of(definition("a", more)), listing("rm"), deny="^rm")
    assert list(taken.allowed) == ["a"]


@each_row(("raw", "sentence"), [
    (definition("a"), None), (definition("rm"), None),
    (b'{"inputSchema":{"type":"object"},"name":"\\u0061"}', None),
    (definition("a", ',"x":1'),
     "the upstream changed the tool a: still serving the version seen at start-up"),
    (definition("new"), NEW_TOOL),
    (b"1", "the upstream sent a tool that is not an object: not exposed"),
])  # fmt: skip
def test_drift_lists_later_differences_from_the_snapshot(raw: bytes, sentence: str | None) -> None:
    assert drift_of(one_definition(raw), snapshot("a", "rm", deny="^rm")) == sentence


@each_row(("name", "text"), [
    ("delete_file", "delete_file"),
    ("l\u00f6schen \U0001f600", "l\u00f6schen \U0001f600"),
    ("a\r\n\x1b[31m", "a\\r\\n\\x1b[31m"), ("\ud800", "\\ud800"),
    ("\u202eabc\u2028", "\\u202eabc\\u2028"), ("x" * 128, "x" * 128), ("x" * 129, "x" * 128 + "…"),
])  # fmt: skip
def test_shown_names_are_escaped(name: str, text: str) -> None:
    assert shown(name) == text


ALLOWED, DENIED, UNKNOWN = Standing


@each_row(("name", "listed", "by_page", "unlisted"), [
    ("read", ALLOWED, ALLOWED, ALLOWED), ("rm", DENIED, DENIED, DENIED),
    ("rm_other", UNKNOWN, DENIED, DENIED), ("read_other", UNKNOWN, UNKNOWN, ALLOWED),
    ("other", UNKNOWN, DENIED, DENIED), ("", UNKNOWN, DENIED, DENIED),
    ("read" * MAX_NAME, UNKNOWN, UNKNOWN, UNKNOWN),
    ("read" + "\U0001f600" * (MAX_NAME - 4), UNKNOWN, UNKNOWN, UNKNOWN),
])  # fmt: skip
def test_a_name_stands_as_the_list_says_and_else_as_the_patterns_say(
    name: str, listed: Standing, by_page: Standing, unlisted: Standing
) -> None:
    known = snapshot("read", "rm", deny="^rm", allow="^read")
    learning = UnlistedTools(known.choice)
    before = learning.snapshot.standing(name)
    of_page = learning.judge_page(page(listing("read", "rm")))
    assert (known.standing(name), of_page.standing(name), before) == (listed, by_page, unlisted)


def test_a_denied_call_asks_its_pattern_once_while_the_list_is_unknown() -> None:
    """Those who report a decision ask about the same name again."""
    taken = UnlistedTools(parse_config(deny=["^rm"]).choice).snapshot
    with patch.object(Pattern, "matches", autospec=True, side_effect=Pattern.matches) as matches:
        verdict = decide_call(call("rm_rf"), taken)
        assert describe(verdict, taken) == "not found: rm_rf (denied by ^rm)"
        assert isinstance(verdict, Reply)
        by = taken.hiding("rm_rf")
        assert by is not None
        assert by.text == "^rm"
    assert matches.call_count == 1
