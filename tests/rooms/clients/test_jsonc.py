"""JSON with comments is read, and edited without a change to anything else."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.rooms.clients.jsonc import parse, render, with_mapping
from mcp_tool_filter.rooms.clients.toml_text import merged, with_comments_of
from tests.rows import each_row

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_KEYS = st.sampled_from(["a", "b", "c", "", "//", "é"])
_OBJECTS = st.dictionaries(_KEYS, _VALUES, max_size=4)


@given(_VALUES, st.sampled_from([None, 1, 4, "\t"]))
def test_all_json_is_read_and_written(value: object, indent: int | str | None) -> None:
    assert parse(json.dumps(value, indent=indent)) == value
    assert parse(f"// {{\n{json.dumps(value, indent=indent)}/* ] */") == value
    assert json.loads(render(value, "    ")) == value


def test_comments_and_trailing_commas_are_accepted() -> None:
    text = '\ufeff// first\n{ /* {"no": 1} */ "a": [1, 2, ], // "b": 2\n "url": "http://x", }\n'
    assert parse(text) == {"a": [1, 2], "url": "http://x"}


@each_row(
    "text",
    [
        "", "{", '{"a" 1}', '{"a": }', '{"a": 1 "b": 2}', "[1 2]", "{a: 1}", "{'a': 1}", "01x",
        '{"a": 1} {}', '"a\nb"', "/* never closed", '"\\x"', "[" * 200, "-", "[,]", "[1,,]", "NaN",
        "[" * 200_000, "1" * 5000, "# no comment\n{}", "{,}",
    ],
)  # fmt: skip
def test_invalid_json_is_reported_with_its_line(text: str) -> None:
    with pytest.raises(ProtocolError, match=r"line \d+: ") as error:
        parse(text)
    assert (str(error.value) == "line 1: nested too deeply") == (text == "[" * 200_000)


@given(old=_OBJECTS, new=_OBJECTS, indent=st.sampled_from([None, 2, "\t"]), end=st.booleans())
def test_any_object_becomes_any_other_and_its_neighbours_stay(
    old: dict[str, object], new: dict[str, object], indent: int | str | None, end: bool
) -> None:
    text = json.dumps({"before it": 1, "x": {"y": old}, "after it": 2}, indent=indent)
    text = text.replace('"before it": 1', '"before it":   1 /* a */')
    text = text.replace('"after it": 2', '"after it": 2 /* b */,')
    text = text.replace("\n", "\r\n") if end else text
    changed = with_mapping(text, ["x", "y"], new)
    assert parse(changed) == {"before it": 1, "x": {"y": new}, "after it": 2}
    assert '"before it":   1 /* a */' in changed
    assert '"after it": 2 /* b */,' in changed
    assert not (end and indent is not None and re.search(r"(?<!\r)\n", changed))
    assert with_mapping(text, ["x", "y"], old) == text


_TEXT = '{\n\t"a": 1, // one\n\t"b": {"c": [2]},\n\t"d": 3 // three\n}\n'


@each_row(
    ("text", "value", "new"),
    [
        # a member goes with its comma
        (_TEXT, {"b": {"c": [2]}, "d": 3},
         '{\n\t// one\n\t"b": {"c": [2]},\n\t"d": 3 // three\n}\n'),
        (_TEXT, {"a": 1, "d": 3}, '{\n\t"a": 1, // one\n\t"d": 3 // three\n}\n'),
        (_TEXT, {"a": 1, "b": {"c": [2]}},
         '{\n\t"a": 1, // one\n\t"b": {"c": [2]}\n\t // three\n}\n'),
        # a value changes and nothing else
        (_TEXT, {"a": 1, "b": {"c": ["x"]}, "d": 3}, _TEXT.replace("[2]", '["x"]')),
        (_TEXT, {"a": 1, "b": {"c": [2], "e": 1}, "d": 3}, _TEXT.replace("[2]", '[2], "e": 1')),
        # comments stay where a member was
        ('{\n  "a": [ // x\n  ], /* y */\n  "b": {"c": 1 /* z */}\n}', {"a": [1]},
         '{\n  "a": // x\n  [\n    1\n  ] /* y */\n  /* z */ \n}'),
        # new members follow the style of the others
        ('{"a": 1}', {"a": 1, "x": [1], "y": "z"}, '{"a": 1, "x": [1], "y": "z"}'),
        ("{}", {"x": [1] * 40}, '{\n  "x": [\n' + "    1,\n" * 39 + "    1\n  ]\n}"),
        ('{\n    "a": 1,\n}', {"a": 1, "x": [1]}, '{\n    "a": 1,\n    "x": [1],\n}'),
        ('{\n\t"a": 1 // one\n}', {"a": 1, "x": 2}, '{\n\t"a": 1,\n\t"x": 2 // one\n}'),
        # of two members with one key, the last counts
        ('{"a": 1, "a": 2}', {"a": 3}, '{"a": 1, "a": 3}'),
        ('{"a": 1, "a": 2, "b": 1}', {"b": 1}, '{"b": 1}'),
    ],
)  # fmt: skip
def test_an_edit_changes_only_what_differs(text: str, value: dict[str, object], new: str) -> None:
    assert with_mapping(text, [], value) == new


_LINES = st.lists(st.sampled_from(["a\n", "b\n", "# c\n", "\n"]), max_size=6).map("".join)


@given(base=_LINES, changed=_LINES)
def test_a_single_change_is_merged(base: str, changed: str) -> None:
    assert merged(base, changed, base) == changed
    assert merged(base, base, changed) == changed


@pytest.mark.parametrize(
    ("one", "other"),
    [("1\nB\n3\n", "1\nX\n3\n"), ("1\n3\n", "1\nX\n3\n"), ("1\n2\n3\na\n", "1\n2\n3\nb\n")],
)
def test_two_changes_of_the_same_lines_are_not_merged(one: str, other: str) -> None:
    assert merged("1\n2\n3\n", one, other) is None


@given(old=_LINES, new=_LINES)
def test_merging_loses_no_comment_and_adds_nothing(old: str, new: str) -> None:
    text = with_comments_of(old, new)
    rest = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
    assert rest == [line for line in new.splitlines() if line.strip() and line[0] != "#"]
    assert ("#" in text) == ("#" in old + new)
