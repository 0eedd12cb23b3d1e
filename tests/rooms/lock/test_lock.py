"""The lock as a value: what equals an approved definition, and the bytes of its file."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.rooms.lock.lock import (
    BrokenLock,
    Lacks,
    Lock,
    WrittenNumber,
    doubled_in,
    parse_json,
    parse_lock,
    render_lock,
)
from tests.rows import each_row

NUMBERS = st.sampled_from(["0", "-0", "1", "1.0", "1e2", "1E+2", "0.10", "12345678901234567890123"])
TEXTS = st.text(
    st.one_of(st.characters(), st.sampled_from('\u200b\ud800\udc00\x00\x7f\u2028\U000e0041é\\"'))
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS.map(WrittenNumber), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
type Tool = dict[str, Any]
DEFINITIONS = st.dictionaries(TEXTS, VALUES, max_size=4)
LOCKS = st.builds(
    Lock,
    server_name=TEXTS,
    server_version=TEXTS,
    instructions=st.none() | TEXTS,
    tools=st.dictionaries(TEXTS, DEFINITIONS, max_size=3),
)


def written(value: Any, order: random.Random) -> str:
    """Write JSON as a server may: members in any order, letters escaped or not."""
    if isinstance(value, dict):
        members = [f"{written(key, order)}:{written(one, order)}" for key, one in value.items()]
        order.shuffle(members)
        return f"{{ {', '.join(members)}}}"
    if isinstance(value, WrittenNumber):
        return value.text
    if isinstance(value, list):
        return f"[{','.join(written(one, order) for one in value)}]"
    plain = json.dumps(value, ensure_ascii=False)
    has_half = any(0xD800 <= ord(letter) < 0xE000 for letter in plain)
    return json.dumps(value) if has_half or order.random() < 0.5 else plain


@given(lock=LOCKS)
def test_a_lock_that_is_read_and_written_again_has_the_same_bytes(lock: Lock) -> None:
    raw = render_lock(lock)
    assert parse_lock(raw) == lock
    assert render_lock(parse_lock(raw)) == raw
    assert raw.endswith(b"\n}\n")
    json.loads(raw)


@given(definition=DEFINITIONS, order=st.randoms())
def test_every_spelling_of_a_definition_is_equal(definition: Tool, order: random.Random) -> None:
    sent = written(definition, order).encode()
    lock = parse_lock(render_lock(Lock(tools={"a": definition})))
    assert lock.judge("a", sent) is None
    assert render_lock(Lock(tools={"a": parse_json(sent)})) == render_lock(lock)


@given(one=DEFINITIONS, other=DEFINITIONS)
def test_different_definitions_have_different_bytes(one: Tool, other: Tool) -> None:
    raw, raw_of_other = (render_lock(Lock(tools={"a": it})) for it in (one, other))
    assert (raw == raw_of_other) is (one == other)


@each_row(("approved", "sent", "lacks"), [
    ('{"a":1}', '{"a": 1}', None), ('{"a":1}', '{"a":1.0}', Lacks.CHANGED),
    ('{"a":1}', '{"a":"1"}', Lacks.CHANGED), ('{"a":1}', '{"a":["1"]}', Lacks.CHANGED),
    ('{"a":1}', '{"a":true}', Lacks.CHANGED), ('{"a":0}', '{"a":-0}', Lacks.CHANGED),
    ('{"a":null}', "{}", Lacks.CHANGED),
    ('{"a":[1,2]}', '{"a":[2,1]}', Lacks.CHANGED),
    ('{"a":1,"b":2}', '{"b":2,"a":1}', None), ('{"a":"\\u00e9"}', '{"a":"é"}', None),
    ('{"a":1}', '{"a":1,"a":1}', Lacks.CHANGED), ('{"a":1,"a":1}', '{"a":1}', Lacks.CHANGED),
    ('{"b":{"a":1,"a":1}}', '{"b":{"a":1,"a":1}}', Lacks.CHANGED),
    ('{"__proto__":1}', '{"__proto__":1}', None), ('{"__proto__":1}', "{}", Lacks.CHANGED),
])  # fmt: skip
def test_only_equal_definitions_pass(approved: str, sent: str, lacks: Lacks | None) -> None:
    lock = parse_lock(f'{{"version":1,"tools":{{"t":{approved}}}}}'.encode())
    assert lock.judge("t", sent.encode()) is lacks
    assert lock.judge("u", sent.encode()) is Lacks.NEW


NO_TEXT = "Its server has a name or a version that is not a text"
DEEP = b'{"version":1,"tools":{"a":{"b":' + b"[" * 400 + b"]" * 400 + b"}}}"


@each_row(("raw", "why"), [
    (b"", "Line 1, column 1: Expecting value"), (b"[]", "It is not a JSON object"),
    (b"{}", "It has no version; this release reads version 1"),
    (b'{"version":2,"tools":{}}', "It has version 2; this release reads version 1"),
    (b'{"version":true,"tools":{}}', "It has version true; this release reads version 1"),
    (b'{"version":1,"tools":[]}', 'Its member "tools" is not an object'),
    (b'{"version":1,"tools":{},"server":1}', 'Its member "server" is not an object'),
    (b'{"version":1,"tools":{},"server":{"name":1}}', NO_TEXT),
    (b'{"version":1,"tools":{"a":1}}', 'Its tool "a" is not an object'),
    (b'{"version":1,"tools":{"a":{},"\\u0061":{}}}', 'The list of its tools has "a" twice'),
    (b'{"version":1,"tools":{},"tools":{}}', 'It has "tools" twice'),
    (b'{"version":1,"tools":{},"tool":{}}', 'It has a member that no lock has: "tool"'),
    (b'{"version":1,"tools":{},"instructions":1}', "Its instructions are neither a text nor null"),
    (b'{"version":1,"tools":{"a":{"b":NaN}}}', "NaN is not JSON"),
    (b'{"version":1,"tools":{"\xff":{}}}', "It is not UTF-8"),
    (DEEP, "It is nested too deeply"), (b"[" * 100_000, "It is nested too deeply"),
])  # fmt: skip
def test_a_broken_lock_gets_one_clear_sentence(raw: bytes, why: str) -> None:
    with pytest.raises(BrokenLock) as caught:
        parse_lock(raw, "t.lock")
    assert str(caught.value).splitlines()[:2] == ["Error: The lock is broken: t.lock", why]


def test_the_file_is_as_people_expect_it() -> None:
    tools: dict[str, Any] = {
        "b": {"name": "b", "inputSchema": {}},
        "a": {"name": "a", "x": [WrittenNumber("1.0"), True, None], "d": "caf\u00e9 \u200b\ud800"},
    }
    lock = Lock(server_name="srv", server_version="2", tools=tools)
    assert render_lock(lock).decode() == (
        '{\n  "version": 1,\n  "server": {\n    "name": "srv",\n    "version": "2"\n  },\n'
        '  "instructions": null,\n  "tools": {\n'
        '    "a": {\n      "d": "caf\u00e9 \\u200b\\ud800",\n      "name": "a",\n'
        '      "x": [\n        1.0,\n        true,\n        null\n      ]\n    },\n'
        '    "b": {\n      "inputSchema": {},\n      "name": "b"\n    }\n  }\n}\n'
    )


def test_a_member_that_is_there_twice_is_found_at_any_depth() -> None:
    assert doubled_in(parse_json('{"a":[{"b":1,"c":2,"b":1}]}')) == "b"
    assert doubled_in(parse_json('{"a":[{"b":1},{"b":1}]}')) is None


@each_row("sent", [
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b'{"name":"t"', b"\xff", b'{"name":"t","x":NaN}',
    b'{"name":"t","x":[-0]}', b'{"name":"t","x":[0],"__proto__":{}}',
    b'{"name":"t","x":[0],"x":[0]}',
])  # fmt: skip
def test_what_cannot_be_read_for_sure_equals_nothing(sent: bytes) -> None:
    lock = parse_lock(b'{"version":1,"tools":{"t":{"name":"t","x":[0]}}}')
    for _ in range(2):  # only what was equal once is remembered
        assert [lock.judge("t", sent) for _ in range(2)] == [Lacks.CHANGED] * 2
        assert lock.judge("t", b'{"n\\u0061me":"t","x":[0]}') is None


def test_other_spellings_of_a_name_are_not_approved() -> None:
    lock = parse_lock('{"version":1,"tools":{"caf\u00e9":{},"__proto__":{}}}'.encode())
    assert lock.judge("cafe\u0301", b"{}") is Lacks.NEW
    assert lock.judge("__proto__", b"{}") is None
    assert lock.judge("constructor", b"{}") is Lacks.NEW
