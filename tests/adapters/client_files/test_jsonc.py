"""JSON with comments is read, and edited without a change to anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.client_files.jsonc import (
    TextEdit,
    apply,
    insert,
    parse,
    remove,
    render,
    replace,
)
from mcp_tool_filter.errors import ProtocolError

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_VALUES, st.sampled_from([None, 1, 4, "\t"]))
def test_all_json_is_read(value: object, indent: int | str | None) -> None:
    assert parse(json.dumps(value, indent=indent)).value == value


@given(_VALUES)
def test_written_json_can_be_read_back(value: object) -> None:
    assert json.loads(render(value, "    ")) == value


def test_comments_and_trailing_commas_are_accepted() -> None:
    text = '\ufeff// first\n{ /* {"no": 1} */ "a": [1, 2, ], // "b": 2\n "url": "http://x", }\n'
    assert parse(text).value == {"a": [1, 2], "url": "http://x"}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", '{"a" 1}', '{"a": }', '{"a": 1 "b": 2}', "[1 2]", "{a: 1}", "{'a': 1}", "01x",
        '{"a": 1} {}', '"a\nb"', "/* never closed", '"\\x"', "[" * 200, "-",
    ],
)  # fmt: skip
def test_invalid_json_is_reported_with_its_line(text: str) -> None:
    with pytest.raises(ProtocolError, match=r"line \d+: "):
        parse(text)


TEXT = '{\n\t"a": 1, // one\n\t"b": {"c": [2]},\n\t"d": 3 // three\n}\n'


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ("a", '{\n\t"b": {"c": [2]},\n\t"d": 3 // three\n}\n'),
        ("b", '{\n\t"a": 1, // one\n\t"d": 3 // three\n}\n'),
        ("d", '{\n\t"a": 1, // one\n\t"b": {"c": [2]} // three\n}\n'),
    ],
)
def test_a_member_is_removed_with_its_comma(gone: str, left: str) -> None:
    root = parse(TEXT)
    member = root.member(gone)
    assert member
    text = apply(TEXT, [remove(TEXT, root, member)])
    assert parse(text).value == {k: v for k, v in parse(TEXT).value.items() if k != gone}  # type: ignore[attr-defined]  # an object
    assert "three" in text
    assert gone != "b" or text == left


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ('{"a": 1}', '{"a": 1, "x": [1], "y": "z"}'),
        ("{}", '{\n  "x": [1],\n  "y": "z"\n}'),
        ('{\n    "a": 1,\n}', '{\n    "a": 1,\n    "x": [1],\n    "y": "z",\n}'),
        ('{\n\t"a": 1 // one\n}', '{\n\t"a": 1,\n\t"x": [1],\n\t"y": "z" // one\n}'),
    ],
)
def test_added_members_follow_the_style_of_the_others(text: str, new: str) -> None:
    assert apply(text, [insert(text, parse(text), [("x", [1]), ("y", "z")])]) == new


def test_replacing_a_value_changes_nothing_else() -> None:
    node = parse(TEXT).at(["b", "c"])
    assert node
    assert apply(TEXT, [replace(TEXT, node, ["new"])]) == TEXT.replace("[2]", '["new"]')
    assert isinstance(replace(TEXT, node, 1), TextEdit)
