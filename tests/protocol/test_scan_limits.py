"""How many parts and levels a message may have, and how they are counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.protocol import scan as scanning
from mcp_tool_filter.protocol.limits import MOST_LISTED, MOST_PARTS, OverLimit
from mcp_tool_filter.protocol.scan import EACH, Many, Outline, scan
from mcp_tool_filter.protocol.skim import _levels_exceed


def test_only_parts_in_the_outline_are_bounded() -> None:
    many = b",".join([b"{}"] * (MOST_PARTS + 1))
    _, root = scan(b'{"a":[' + many + b"]}", {"a": {}})
    assert root["a"].end == len(many) + 7
    with pytest.raises(OverLimit):
        scan(b'{"a":[' + many + b"]}", {"a": {EACH: {}}})


def test_the_bound_is_for_the_whole_message() -> None:
    part = b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9}'
    listed = b",".join([part] * (MOST_PARTS // 10 - 1))
    scan(b'{"a":[' + listed + b"]}", {"a": {EACH: {}}})
    with pytest.raises(OverLimit):
        scan(b'{"a":[' + listed + b"," + part + b"]}", {"a": {EACH: {}}})


def test_a_tool_list_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_LISTED > MOST_PARTS
    most_listed = MOST_PARTS + 2  # reading the real number takes seconds
    monkeypatch.setattr(scanning, "MOST_LISTED", most_listed)
    outline: Outline = {"a": Many({EACH: {}})}
    most = b",".join([b'{"b":1}'] * (most_listed // 2))
    scan(b'{"a":[' + most + b"]}", outline)
    for more in (b'{"b":1,"c":1}', b'{"b":1},{"b":1}'):
        with pytest.raises(OverLimit):
            scan(b'{"a":[' + most + b"," + more + b"]}", outline)
    with pytest.raises(OverLimit):
        scan(b'{"a":[' + most + b'],"a":[{"b":1}]}', outline)


@given(text=st.text(alphabet="[]", max_size=40))
def test_levels_of_random_brackets_are_counted_correctly(text: str) -> None:
    """The closing ones may come first: what is refused anyway may be called too deep."""
    depth = deepest = 0
    for bracket in text:
        depth += 1 if bracket == "[" else -1
        deepest = max(deepest, depth)
        if depth < 0:
            return
    assert _levels_exceed(text.encode(), deepest) is False
    assert deepest == 0 or _levels_exceed(text.encode(), deepest - 1) is True


@given(value=st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=60))
def test_levels_of_random_json_are_counted_correctly(value: list[Any]) -> None:
    text = json.dumps(value, separators=("", "")).encode()
    assert not _levels_exceed(text, depth_of(value))
    assert _levels_exceed(text, depth_of(value) - 1)


def depth_of(value: list[Any]) -> int:
    return 1 + max(map(depth_of, value), default=0)


@pytest.mark.parametrize("shape", [(b"[", b"]"), (b'{"a":', b"}"), (b'{"a":[', b"]}")])
def test_nesting_ends_at_the_limit(shape: tuple[bytes, bytes]) -> None:
    opening, closing = shape
    levels = 128 // (opening.count(b"[") + opening.count(b"{"))
    scan(opening * levels + b"1" + closing * levels, {})
    with pytest.raises(OverLimit):
        scan(opening * (levels + 1) + b"1" + closing * (levels + 1), {})


def test_brackets_in_strings_are_not_nesting() -> None:
    scan(b'["' + b"[{" * 1000 + b'\\"' + b"[" * 1000 + b'\\\\"]', {})


def test_many_shallow_containers_are_not_deep() -> None:
    scan(b"[" + b"[],{}," * 1000 + b"0]", {})


@pytest.mark.parametrize("closing", [b"", b"]" * 1_000_000])
def test_endless_nesting_is_refused(closing: bytes) -> None:
    """However deep: the C scanner gives up by itself before the stack ends."""
    with pytest.raises(OverLimit, match="deeper than 128 levels"):
        scan(b"[" * 1_000_000 + closing, {})


@pytest.mark.parametrize("raw", [b"[NaN,", b"[],[", b'["\\x",', b"[1 2,"])
def test_a_too_deep_text_is_reported_as_too_deep_first(raw: bytes) -> None:
    """It is answered in another way than what is no JSON."""
    with pytest.raises(OverLimit):
        scan(raw + b"[" * 129, {})


@pytest.mark.parametrize("outline", [{}, {"a": {}}, {"a": {EACH: {"b": {}}}}], ids=str)
@pytest.mark.parametrize("text", [b"", b"[" * 20_000])
def test_levels_count_alike_inside_and_outside_the_outline(outline: Outline, text: bytes) -> None:
    opening, closing = b'{"x":"' + text + b'","a":[{"b":[{"c":', b"}]}]}"
    scan(opening + b"[" * 123 + b"]" * 123 + closing, outline)
    for levels in (124, 125, 1000):
        with pytest.raises(OverLimit):
            scan(opening + b"[" * levels + b"]" * levels + closing, outline)


def test_levels_under_repeated_keys_count() -> None:
    deep = b"[" * 128 + b"]" * 128
    with pytest.raises(OverLimit):
        scan(b'{"a":{"b":' + deep + b',"b":1},"a":1}', {})
