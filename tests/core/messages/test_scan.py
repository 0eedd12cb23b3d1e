"""JSON, read strictly: what is JSON to everybody is read, all else is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages import scan as scanning
from mcp_tool_filter.core.messages.limits import MOST_LISTED, MOST_PARTS, Limits, OverLimit
from mcp_tool_filter.core.messages.scan import EACH, Many, Outline, scan
from mcp_tool_filter.core.messages.skim import _levels_exceed
from tests.core.messages.json_texts import NOT_JSON, ODD_BUT_LEGAL
from tests.rows import each_row


@each_row("raw", ODD_BUT_LEGAL)
def test_odd_but_legal_json_is_read(raw: bytes) -> None:
    text, root = scan(raw, {})
    assert text[slice(*root.span)].encode() == raw.strip(b" \t\r\n")


@each_row("raw", NOT_JSON)
def test_a_text_that_only_some_readers_accept_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        scan(raw, {"a": {}})


@each_row("raw", [raw for raw in NOT_JSON if raw.strip()])
def test_such_texts_are_refused_outside_the_outline_too(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        scan(b'{"deep":[' + raw + b"]}", {})


def test_a_part_keeps_its_place_in_the_text() -> None:
    """So that an answer can give an id back in the very bytes it came in."""
    text, root = scan(b'{"id": 1.0, "params": {"x": [1], "name": "a"}}', {"params": {}})
    assert text[slice(*root["id"].span)] == "1.0"
    assert text[slice(*root["params"]["x"].span)] == "[1]"
    assert root["params"]["name"].text == "a"


def test_the_first_of_members_with_the_same_key_is_found() -> None:
    text, root = scan(rb'{"a": 1, "\u0061": 2, "b": {"a": 3}}', {"b": {}})
    assert [text[slice(*one.span)] for one in (root["a"], root["b"]["a"])] == ["1", "3"]
    assert [member.key for member in root.members or ()] == ["a", "a", "b"]
    assert root.get("c") is None


def test_arrays_are_opened_only_where_the_outline_says_so() -> None:
    """Other parts are only checked, which costs a tenth."""
    document = b'[{"a":[{"b":1}]}]'
    _, closed = scan(document, {"a": {}})
    assert closed.elements is None
    _, opened = scan(document, {EACH: {"a": {}}})
    assert [one["a"].elements for one in opened.elements or ()] == [None]


def test_members_outside_the_outline_are_not_opened() -> None:
    _, root = scan(b'{"a":{"b":1}}', {})
    assert root["a"].members is None


def test_an_escaped_backslash_does_not_escape_a_quote() -> None:
    scan(rb'["\\", "' + b"[" * 1000 + rb'", "\\\"", "' + b"{" * 1000 + b'"]', {})


def test_a_byte_order_mark_is_named_in_the_error() -> None:
    with pytest.raises(ProtocolError, match="byte order mark"):
        scan(b"\xef\xbb\xbf{}", {})


def test_a_message_over_the_limit_is_not_parsed() -> None:
    with pytest.raises(OverLimit):
        scan(b"[" + b" " * 100 + b"]", {}, Limits(message=100))


# Our reader beside others: json, orjson and node


NODE = shutil.which("node")

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
WIDE = {"indent": "\t", "separators": (" ,", " : ")}
WRITINGS = st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 1}, WIDE])


@given(value=JSON_VALUES, writing=WRITINGS)
def test_every_json_text_is_read(value: object, writing: dict[str, Any]) -> None:
    raw = json.dumps(value, **writing).encode("utf-8", "surrogatepass")
    text, root = scan(raw, {})
    assert text[slice(*root.span)] == raw.decode()


# Bytes that mostly look like JSON: whole texts, cut, repeated and put together at random.
SCRAPS = st.sampled_from([*ODD_BUT_LEGAL, *NOT_JSON, b",", b":", b'"a"', b"[1", b'{"a":'])

SOUP = st.lists(SCRAPS | st.binary(max_size=3), max_size=6).map(b"".join)


@given(raw=SOUP)
@settings(max_examples=300)
def test_only_protocol_errors_are_raised(raw: bytes) -> None:
    with suppress(ProtocolError):
        scan(raw, {"a": {"a": {}}})


@given(raw=SOUP)
@settings(max_examples=300)
def test_everything_that_orjson_reads_is_read(raw: bytes) -> None:
    """But not the other way round: it refuses half a surrogate pair, and 400 digits."""
    assert reads(raw) or not orjson_reads(raw) or is_deep(raw)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@given(raws=st.lists(SOUP, min_size=50, max_size=50))
@example(ODD_BUT_LEGAL + NOT_JSON)
@settings(max_examples=3)
def test_exactly_what_node_reads_is_read(raws: list[bytes]) -> None:
    """One byte order mark, bytes that are no UTF-8 and depth set us apart: those we refuse."""
    for raw, theirs in zip(raws, node_reads(raws), strict=True):
        assert theirs == reads(raw) or is_odd_text(raw) or is_deep(raw)


def reads(raw: bytes) -> bool:
    try:
        scan(raw, {"a": {}})
    except ProtocolError:
        return False
    return True


def orjson_reads(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return False
    return True


def is_deep(raw: bytes) -> bool:
    return raw.count(b"[") + raw.count(b"{") > 128


def is_odd_text(raw: bytes) -> bool:
    try:
        return raw.decode().startswith("\ufeff")
    except UnicodeDecodeError:
        return True


def node_reads(raws: list[bytes]) -> list[bool]:
    """Ask node which texts it reads: one process for all of them."""
    script = (
        "const said = require('fs').readFileSync(0, 'utf8').split('\\n').slice(0, -1);"
        "const reads = (hex) => { try {"
        " JSON.parse(Buffer.from(hex, 'hex').toString('utf8')); return true }"
        " catch { return false } };"
        "console.log(JSON.stringify(said.map(reads)))"
    )
    lines = "".join(raw.hex() + "\n" for raw in raws)
    assert NODE
    done = subprocess.run([NODE, "-e", script], input=lines, capture_output=True, text=True)
    answers: list[bool] = json.loads(done.stdout)
    return answers


# How many parts and levels a message may have, and how they are counted


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


@given(opens=st.lists(st.booleans(), max_size=60))
def test_levels_of_random_brackets_are_counted_correctly(opens: list[bool]) -> None:
    """None is closed before it was opened: what is refused anyway may be called too deep."""
    text, depth, deepest = b"", 0, 0
    for one in opens:
        is_opening = one or not depth
        text += b"[" if is_opening else b"]"
        depth += 1 if is_opening else -1
        deepest = max(deepest, depth)
    assert _levels_exceed(text, deepest) is False
    assert deepest == 0 or _levels_exceed(text, deepest - 1) is True


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


@each_row("outline", [{}, {"a": {}}, {"a": {EACH: {"b": {}}}}])
@each_row("text", [b"", b"[" * 20_000])
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
