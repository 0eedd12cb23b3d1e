"""Deny and allow: a pattern is used, or the start fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.cli.parsing import parse_config, split_patterns
from mcp_tool_filter.cli.switching import NOTHING, deny_for, switched
from mcp_tool_filter.core.errors import InvalidPattern
from mcp_tool_filter.core.policy.choice import NOT_ALLOWED
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.patterns import MAX_NAME, parse_glob, parse_pattern
from mcp_tool_filter.core.policy.taking import take_snapshot
from tests.make import listing, page
from tests.rows import each_row


@each_row(("value", "patterns"), [
    ("^file_.*$,.*_database$", ["^file_.*$", ".*_database$"]),
    ("a{1,2},b", ["a{1,2}", "b"]), ("[,],b", ["[,]", "b"]), (r"[\],(],b", [r"[\],(]", "b"]),
    ("(a,b),(?:c,(d,e)),f", ["(a,b)", "(?:c,(d,e))", "f"]),
    (r"a\,b,c", [r"a\,b", "c"]), (r"a\\,b", [r"a\\", "b"]), (r"\(,\[,\{", [r"\(", r"\[", r"\{"]),
    ("a),b", ["a)", "b"]), ("a{,b", ["a{", "b"]),
    (" a ,b ", [" a ", "b "]),  # white space is as typed
    ("a\nb,c", ["a\nb", "c"]),
])  # fmt: skip
def test_a_comma_separates_except_inside(value: str, patterns: list[str]) -> None:
    assert split_patterns(value) == patterns


@pytest.mark.parametrize(("value", "meant"), [
    ("delete_, create_", "delete_,create_"), ("a,\tb{1,2},  c", "a,b{1,2},c"),
])  # fmt: skip
def test_a_space_after_a_comma_is_refused_with_the_corrected_text(value: str, meant: str) -> None:
    """It is the commonest slip, and would leave open what looks closed."""
    with pytest.raises(InvalidPattern) as refused:
        split_patterns(value)
    assert f'Write "{meant}"' in refused.value.why


@pytest.mark.parametrize("value", ["", ",", "a,", ",a", "a,,b"])
def test_an_empty_part_is_refused(value: str) -> None:
    """It would match every tool: more likely it is a slip."""
    with pytest.raises(InvalidPattern) as caught:
        split_patterns(value)
    what, why = str(caught.value).splitlines()
    assert what == 'Error: Invalid regex pattern in deny list: ""'
    assert why == "An empty pattern matches every tool name; leave it out"


@given(st.lists(st.text("ab,()[]{}\\^$ ", min_size=1)).map(",".join))
def test_splitting_patterns_loses_no_character(value: str) -> None:
    try:
        parts = split_patterns(value)
    except InvalidPattern:
        return
    assert ",".join(parts) == value


def test_the_error_names_the_list_that_the_pattern_is_in() -> None:
    with pytest.raises(InvalidPattern, match="in allow list"):
        parse_pattern("[", option="allow")
    with pytest.raises(InvalidPattern, match="in allow list"):
        split_patterns("a,,b", option="allow")


@pytest.mark.parametrize("pattern", ["x", "a{2000}", r"^(?!.*(.).*\1)b", r"(a*)\1x"])
def test_a_name_too_costly_to_judge_is_judged_against_the_tool(pattern: str) -> None:
    """Denied by a deny pattern, not allowed by an allow pattern."""
    endless = "a" * 2_000_000
    assert parse_pattern(pattern).matches(endless)
    assert not parse_pattern(pattern, option="allow").matches(endless)


def test_a_name_that_may_be_exposed_is_always_judged() -> None:
    name = "a" * MAX_NAME
    assert parse_pattern(r"^(?!.*(.).*\1)").matches(name) is False
    assert parse_pattern("^.*b.*b.*$").matches(name) is False
    assert parse_pattern(f"^a{{{MAX_NAME}}}$", option="allow").matches(name) is True


def test_patterns_with_the_same_text_are_the_same_pattern() -> None:
    """So that a report can count by pattern."""
    assert len({parse_pattern("a"), parse_pattern("a"), parse_pattern("b")}) == 2


_WORDS = st.sampled_from(["read", "write", "delete", "file", "user", "get", "all"])
_NAMES = (
    st.builds("_".join, st.lists(_WORDS, min_size=1, max_size=3))
    | st.builds("".join, st.lists(_WORDS.map(str.title), min_size=1, max_size=3))
    | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
)


@given(st.lists(_NAMES, min_size=1, max_size=12, unique=True), st.data())
def test_the_pattern_matches_just_the_picked_tools(names: list[str], data: st.DataObject) -> None:
    hidden = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    text = deny_for(hidden, names)
    assert split_patterns(text) == [text]
    assert {name for name in names if parse_pattern(text).matches(name)} == {*hidden}


NAMES = ["read", "rm", "rmdir"]


type Texts = list[str]


def config_of(deny: Texts, spare: Texts, **more: Texts) -> Config:
    return parse_config({"deny": deny or None, "except": spare or None, **more})


@each_row(("deny", "spare", "hide", "show", "result", "spared"), [
    (["^rm$"], [], [], ["rm"], [NOTHING], []),  # no pattern at all would be refused
    (["^rm"], [], [], ["rm", "rmdir"], ["^rm"], ["^rm$", "^rmdir$"]),
    ([NOTHING], [], ["read"], [], ["^read$"], []),
    ([], [], ["read"], [], ["^read$"], []), (["^rm"], [], [], ["rm"], ["^rm"], ["^rm$"]),
    (["^rm"], ["^rm$"], ["rm"], [], ["^rm"], []),
    (["^r"], ["^rm"], ["rm"], [], ["^r"], ["^rmdir$"]),
    (["^r"], ["^rm"], ["read"], ["rm"], ["^r"], ["^rm"]),
    (["^rm", "^none"], [], ["read"], [], ["^rm", "^none", "^read$"], []),
])  # fmt: skip
def test_exactly_these_tools_are_hidden_and_shown(
    deny: Texts, spare: Texts, hide: Texts, show: Texts, result: Texts, spared: Texts
) -> None:
    """No pattern that a person typed becomes one for fewer tools: more may come later."""
    before = config_of(deny, spare).choice
    changed = switched(before, NAMES, hide, show)
    assert (changed.deny, changed.exceptions) == (result, spared)
    after = config_of(changed.deny, changed.exceptions).choice
    for name in NAMES:
        wanted = name in hide or (before.hiding(name) is not None and name not in show)
        assert (after.hiding(name) is not None) is wanted


def test_an_exception_lifts_no_allow_and_an_unclear_one_lifts_nothing() -> None:
    config = config_of(["^r"], ["^r(?:ead|m)$"], allow=["m"])
    [pattern] = config.choice.deny
    assert [name for name in NAMES if config.choice.hiding(name) is pattern] == ["rmdir"]
    found = take_snapshot([page(listing(*NAMES))], config.choice)
    assert list(found.allowed) == ["rm"]
    assert found.denied == {"read": NOT_ALLOWED, "rmdir": pattern}
    config = config_of(["^r"], ["^none"])
    found = take_snapshot([page(listing(*NAMES))], config.choice)
    assert (list(found.allowed), found.unmatched) == ([], config.choice.exceptions)


def test_patterns_that_are_read_again_are_the_same() -> None:
    """At SIGHUP, and for each server: proving a pattern takes longer than all else together."""
    assert parse_pattern("^rm_(?:a|b)$") is parse_pattern("^rm_(?:a|b)$")
    assert parse_glob("rm_*") is parse_glob("rm_*")
    assert parse_pattern("^rm_", ignore_case=True) != parse_pattern("^rm_")
