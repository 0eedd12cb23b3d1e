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

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.levels import _levels_exceed
from mcp_tool_filter.protocol.limits import MOST_LISTED, MOST_PARTS, Limits, OverLimit
from mcp_tool_filter.protocol.scan import EACH, Few, Many, Outline, fold, scan

NODE = shutil.which("node")

ODD_BUT_LEGAL = [
    b'{"b":1,"a":2}',
    b' \t\r\n{ "a" :\n1 }\r\n',
    rb'"\u0041\ud83d\ude00\/\b\f"',
    rb'"\ud800"',
    rb'{"\udc00":"\ud800\ud800"}',
    b"1.00",
    b"-0",
    b"-0.0e-0",
    b"1E+2",
    b"18446744073709551617",
    b"1" * 400,
    b"1" * 5000,
    b"1." + b"1" * 5000,
    b"1e99999",
    b'{"a":1,"a":2,"A":3}',
    '"\u2028\u2029\u0085\ufeff"'.encode(),
    b'"' + b"\x7f" + b'"',
    b"[" * 128 + b"]" * 128,
    b'{"a":' * 128 + b"1" + b"}" * 128,
    b'[[],{},"[[[","{{{\\"{"]',
    b"null",
    b'""',
    b"[]",
    b"{}",
]

NOT_JSON = [
    b"",
    b" ",
    b"\xef\xbb\xbf{}",
    b"{}\xef\xbb\xbf",
    b"\xff\xfe{\x00}\x00",
    '{"a":1}'.encode("utf-16"),
    '{"a":1}'.encode("utf-16-le"),
    '{"a":1}'.encode("utf-32-be"),
    b"+AHsAIg-",
    b'"\xff"',
    b'"\xc0\xaf"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b"NaN",
    b"[NaN]",
    b"Infinity",
    b'{"a":-Infinity}',
    b"{} {}",
    b"{}{}",
    b"{}\n{}",
    b"[1,]",
    b"[,1]",
    b"[1 2]",
    b'{"a":1,}',
    b'{,"a":1}',
    b'{"a" 1}',
    b'{"a"::1}',
    b"{a:1}",
    b"{'a':1}",
    b'{"a":1//x\n}',
    b"/**/{}",
    b"#\n{}",
    b"01",
    b"+1",
    b"1.",
    b".5",
    b"1e",
    b"0x10",
    b"-",
    b"1_000",
    "\u0661".encode(),
    b"True",
    b"undefined",
    b'"\n"',
    b'"\t"',
    b'"\0"',
    rb'"\x41"',
    rb'"\u00"',
    rb'"\u{41}"',
    rb'"\ud8"',
    b'"\\',
    b'"',
    b'"a',
    b"[",
    b"{",
    b'{"a"',
    b'{"a":',
    b'{"a":1',
    b"]",
    b"}",
    b"[}",
    b"{]",
    b"[]]",
    b"\x0b{}",
    b"\x0c{}",
    b"\xa0{}",
    "\u00a0{}".encode(),
    "\u3000{}".encode(),
    b"{}\0",
    b"\0{}",
    b")]}',\n{}",
    b"while(1);{}",
]


def short(raw: bytes) -> str:
    return f"{raw[:20]!a} of {len(raw)}"


@pytest.mark.parametrize("raw", ODD_BUT_LEGAL, ids=short)
def test_what_is_legal_is_read_however_odd(raw: bytes) -> None:
    text, root = scan(raw, {})
    assert text[slice(*root.span)].encode() == raw.strip(b" \t\r\n")


@pytest.mark.parametrize("raw", NOT_JSON, ids=short)
def test_what_some_reader_might_accept_and_another_not_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        scan(raw, {"a": {}})


@pytest.mark.parametrize("raw", [raw for raw in NOT_JSON if raw.strip()], ids=short)
def test_the_same_holds_where_the_outline_does_not_look(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        scan(b'{"deep":[' + raw + b"]}", {})


def test_a_part_is_known_by_its_place() -> None:
    """So that an answer can give an id back in the very bytes it came in."""
    text, root = scan(b'{"id": 1.0, "params": {"x": [1], "name": "a"}}', {"params": {}})
    assert text[slice(*root["id"].span)] == "1.0"
    assert text[slice(*root["params"]["x"].span)] == "[1]"
    assert root["params"]["name"].text == "a"


def test_repeated_members_are_all_there() -> None:
    """Who looks at a key twice has to see that it is twice."""
    _, root = scan(b'{"a":1,"\\u0061":2}', {})
    assert [member.key for member in root.members or ()] == ["a", "a"]


def test_an_array_is_opened_only_where_the_outline_says_so() -> None:
    """What nobody looks into is only checked, which costs a tenth."""
    document = b'[{"a":[{"b":1}]}]'
    _, closed = scan(document, {"a": {}})
    assert closed.elements is None
    _, opened = scan(document, {EACH: {"a": {}}})
    assert [one["a"].elements for one in opened.elements or ()] == [None]


def test_what_we_look_into_has_a_bound_and_what_we_do_not_has_none() -> None:
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


def test_a_tool_list_has_a_bound_of_its_own() -> None:
    outline: Outline = {"a": Many({EACH: {}})}
    most = b",".join([b'{"b":1}'] * (MOST_LISTED // 2))
    scan(b'{"a":[' + most + b"]}", outline)
    for more in (b'{"b":1,"c":1}', b'{"b":1},{"b":1}'):
        with pytest.raises(OverLimit):
            scan(b'{"a":[' + most + b"," + more + b"]}", outline)
    with pytest.raises(OverLimit):
        scan(b'{"a":[' + most + b'],"a":[{"b":1}]}', outline)


@given(text=st.text(alphabet="[]", max_size=40))
def test_levels_are_counted_as_one_would(text: str) -> None:
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
def test_levels_of_json_are_counted_as_one_would(value: list[Any]) -> None:
    text = json.dumps(value, separators=("", "")).encode()
    assert not _levels_exceed(text, depth_of(value))
    assert _levels_exceed(text, depth_of(value) - 1)


def depth_of(value: list[Any]) -> int:
    return 1 + max(map(depth_of, value), default=0)


def test_what_the_outline_does_not_name_stays_shut() -> None:
    _, root = scan(b'{"a":{"b":1}}', {})
    assert root["a"].members is None


@pytest.mark.parametrize("shape", [(b"[", b"]"), (b'{"a":', b"}"), (b'{"a":[', b"]}")])
def test_nesting_ends_at_the_limit(shape: tuple[bytes, bytes]) -> None:
    opening, closing = shape
    levels = 128 // (opening.count(b"[") + opening.count(b"{"))
    scan(opening * levels + b"1" + closing * levels, {})
    with pytest.raises(OverLimit):
        scan(opening * (levels + 1) + b"1" + closing * (levels + 1), {})


def test_brackets_in_strings_are_not_nesting() -> None:
    scan(b'["' + b"[{" * 1000 + b'\\"' + b"[" * 1000 + b'\\\\"]', {})


def test_a_backslash_that_is_escaped_escapes_no_quote() -> None:
    scan(rb'["\\", "' + b"[" * 1000 + rb'", "\\\"", "' + b"{" * 1000 + b'"]', {})


def test_a_byte_order_mark_is_called_by_its_name() -> None:
    with pytest.raises(ProtocolError, match="byte order mark"):
        scan(b"\xef\xbb\xbf{}", {})


def test_many_shallow_containers_are_not_nesting() -> None:
    scan(b"[" + b"[],{}," * 1000 + b"0]", {})


@pytest.mark.parametrize("closing", [b"", b"]" * 1_000_000])
def test_endless_nesting_is_refused(closing: bytes) -> None:
    """However deep: the C scanner gives up by itself before the stack ends."""
    with pytest.raises(OverLimit, match="deeper than 128 levels"):
        scan(b"[" * 1_000_000 + closing, {})


@pytest.mark.parametrize("raw", [b"[NaN,", b"[],[", b'["\\x",', b"[1 2,"])
def test_what_is_too_deep_is_so_whatever_else_is_wrong_with_it(raw: bytes) -> None:
    """It is answered in another way than what is no JSON."""
    with pytest.raises(OverLimit):
        scan(raw + b"[" * 129, {})


@pytest.mark.parametrize(
    "outline", [{}, {"a": {}}, {"a": {EACH: {"b": {}}}}, {"a": Few({EACH: {}})}], ids=str
)
@pytest.mark.parametrize("text", [b"", b"[" * 20_000])
def test_levels_count_alike_wherever_we_look(outline: Outline, text: bytes) -> None:
    opening, closing = b'{"x":"' + text + b'","a":[{"b":[{"c":', b"}]}]}"
    scan(opening + b"[" * 123 + b"]" * 123 + closing, outline)
    for levels in (124, 125, 1000):
        with pytest.raises(OverLimit):
            scan(opening + b"[" * levels + b"]" * levels + closing, outline)


def test_levels_that_a_repeated_key_would_hide_count() -> None:
    deep = b"[" * 128 + b"]" * 128
    with pytest.raises(OverLimit):
        scan(b'{"a":{"b":' + deep + b',"b":1},"a":1}', {})


@pytest.mark.parametrize("parts", [1, 16, 17, 1000])
def test_a_value_of_few_parts_is_checked_like_one_of_many(parts: int) -> None:
    part = rb'{"type":"text","text":"' + rb"[{\"a\":\"\\\\\"}]" * 1000 + rb'"}'
    said = b'{"a":[' + b",".join([part] * parts) + b"]}"
    _, root = scan(said, {"a": Few({EACH: {}})}, Limits(message=len(said)))
    assert root == scan(said, {}, Limits(message=len(said)))[1]
    for wrong in (b"NaN", b"[,]", b'"\\x"', b'{"b" 1}', b"[" * 200):
        with pytest.raises(ProtocolError):
            scan(said[:-2] + b"," + wrong + b"]}", {"a": Few({EACH: {}})})


def test_a_message_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(OverLimit):
        scan(b"[" + b" " * 100 + b"]", {}, Limits(message=100))


def test_a_long_key_of_marks_is_folded_in_no_time() -> None:
    """Normalizing is quadratic in a run of combining marks."""
    assert fold("name" + "\u0301\u0316" * 500_000) == "name"
    assert fold("\u00e9" * 1_000_000) == "\u00e9" * 1_000_000


@pytest.mark.parametrize(
    "key",
    [
        "NAME",
        " name ",
        "name\0",
        "name\0x",
        "\uff4e\uff41\uff4d\uff45",
        "n\u200bame",
        "na\ud800me",
        "name\u0301",
        "\x7fname",
        "na\tme",
        "name\u00a0",
        "\ufeffname",
    ],
    ids=ascii,
)
def test_what_a_careless_reader_takes_for_a_key_folds_into_it(key: str) -> None:
    assert fold(key) == "name"


@pytest.mark.parametrize("key", ["param\u017f", "PARAM\u017f"], ids=ascii)
def test_letters_that_fold_only_in_some_languages_fold(key: str) -> None:
    """Go matches a long s to an s; Java a dotless i to an i."""
    assert fold(key) == "params"
    assert fold("\u0131d") == fold("\u0130d") == "id"


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
WRITINGS = st.sampled_from([
    {},
    {"ensure_ascii": False},
    {"indent": 1},
    {"indent": "\t", "separators": (" ,", " : ")},
])  # fmt: skip


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
def test_nothing_is_raised_but_a_protocol_error(raw: bytes) -> None:
    with suppress(ProtocolError):
        scan(raw, {"a": {"a": {}}})


@given(raw=SOUP)
@settings(max_examples=300)
def test_what_orjson_reads_we_read_too(raw: bytes) -> None:
    """But not the other way round: it refuses half a surrogate pair, and 400 digits."""
    assert reads(raw) or not orjson_reads(raw) or is_deep(raw)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@given(raws=st.lists(SOUP, min_size=50, max_size=50))
@example(ODD_BUT_LEGAL + NOT_JSON)
@settings(max_examples=3, deadline=None)
def test_what_is_read_node_reads_too_and_nothing_else(raws: list[bytes]) -> None:
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
