"""A list that is read in steps is read like a whole one."""

from __future__ import annotations

import builtins
import json
import random
import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages import large as long_lists
from mcp_tool_filter.core.messages.large import (
    ToolResult,
    find_result_envelope,
    parse_in_steps,
)
from mcp_tool_filter.core.messages.limits import Limits, OverLimit
from mcp_tool_filter.core.messages.messages import Message, Response, parse_message
from mcp_tool_filter.core.messages.skim import member_reader
from mcp_tool_filter.core.messages.tools import parse_listing, shows_tool
from mcp_tool_filter.core.policy.tool_filter import decide_listing
from mcp_tool_filter.core.policy.verdict import Forward
from tests.core.messages.json_texts import NOT_JSON
from tests.make import answering, definition, listing, listing_of, snapshot
from tests.rows import each_row

LIMITS = Limits()


def read_in_steps(raw: bytes, limits: Limits = LIMITS) -> tuple[Message, int]:
    """Return the message, and after how many steps it is read."""
    reading, steps = parse_in_steps(raw, limits), 0
    while True:
        try:
            next(reading)
        except StopIteration as read:
            return read.value, steps
        steps += 1


TOOLS = st.sampled_from([
    definition("a").decode(), definition("\u00e9").decode(),
    definition("b", ',"x":[{"y":1}]').decode(),
    '{"name":"a"}', "{}", "1", '"],["', "[[]]", '{"name":"c","inputSchema":{},"Name":"d"}',
])  # fmt: skip
AROUND = st.sampled_from([
    '{"tools":[%s]}', '{"a":[1,{"tools":[1]}],"tools" : [ %s ] ,"nextCursor":"n"}',
    '{"tools":[%s],"tools":[]}', '{"Tools":[],"tools":[%s]}', '{"tools":{"a":[%s]}}', "[%s]",
    '{"result":{"tools":[]},"tools":[%s],"ttlMs":5}', '{"t\\u006fols":[%s]}', '{"tools":[%s,]}',
    '{"tools":[%s] "x"}', '{"tools":[%s]',
])  # fmt: skip
BEHIND = st.sampled_from(["", " \n", "x", ',"result":{}', "{}"])


@given(tools=st.lists(TOOLS, max_size=8), around=AROUND, behind=BEHIND, step=st.integers(1, 200))
@settings(max_examples=400)
def test_reading_a_list_in_steps_gives_the_same_result(
    tools: list[str], around: str, behind: str, step: int
) -> None:
    raw = answering(around % ",".join(tools)) + behind.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_lists, "_STEP", step)
        try:
            read, _ = read_in_steps(raw)
        except ProtocolError as error:
            with pytest.raises(ProtocolError, match=re.escape(str(error))):
                parse_message(raw)
            return
    assert read == parse_message(raw)


def test_each_step_reads_little() -> None:
    names = [f"tool_{number}" for number in range(3000)]
    raw = listing(*names)
    read, steps = read_in_steps(raw)
    assert isinstance(read, Response)
    found = parse_listing(read)
    assert found is not None
    assert [one.name for one in found.definitions] == names
    assert steps >= len(raw) // (long_lists._STEP + len(definition(names[-1])) + 1) - 1


@pytest.mark.parametrize("raw", [
    b"[" + listing("a") + b"]",
    answering("{}"),
    answering('{"tools":[]}'),
    b'{"jsonrpc":"2.0","method":"x","params":{"tools":[{}]}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}',
])  # fmt: skip
def test_everything_else_is_read_in_one_step(raw: bytes) -> None:
    assert read_in_steps(raw) == (parse_message(raw), 0)
    assert list(long_lists.in_parts(raw))[-1] is raw


@pytest.mark.parametrize("limits", [Limits(message=90), Limits(depth=5)])
def test_a_list_over_a_limit_is_refused(limits: Limits) -> None:
    raw = listing_of(definition("a", ',"x":[[[1]]]'))
    for read in (parse_message, read_in_steps):
        with pytest.raises(OverLimit):
            read(raw, limits)
    assert read_in_steps(raw, Limits(message=len(raw), depth=8))[0] == parse_message(raw)


# ruff: noqa: E501 - tables


SNAPSHOT = snapshot("read_file", "wipe_disk", deny="^wipe")
HIDDEN = definition("wipe_disk").decode()
EMPTY = answering('{"content":[]}')


def short_way(raw: bytes, limits: Limits = LIMITS) -> tuple[Response, ToolResult] | None:
    envelope = find_result_envelope(raw)
    result = long_lists.read_tool_result(raw, envelope, limits) if envelope else None
    return (envelope.response, result) if envelope and result else None


def agree(raw: bytes) -> bool:
    """Check that both ways say the same, if the short one says anything; tell whether it does."""
    found = short_way(raw)
    if found is None:
        return False
    response, result = found
    read = parse_message(raw)
    assert isinstance(read, Response)
    assert read.result is not None
    assert response.result is not None
    assert (response.id, response.place) == (read.id, read.place)
    assert response.place.raw == read.place.raw
    assert response.result.span == read.result.span
    passes = not shows_tool(result.rest, SNAPSHOT.never_shown)
    try:
        verdict = decide_listing(read, SNAPSHOT, expected=False)
    except ProtocolError:
        assert not passes
    else:
        assert passes
        assert isinstance(verdict, Forward)
    return True


@each_row("raw", [
    EMPTY, b'{"id":"a-1","result":{"content":[{"type":"text","text":"x"}]},"jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","result":{"structuredContent":{"a":[1,2]},"content":[]},"id":0}',
    b'\n { "jsonrpc" : "2.0" ,\r\n"id" : 12 , "result" :\t{ "content" : [ ] } } \n',
    json.dumps(
        {"jsonrpc": "2.0", "id": 1, "result": {"content": [], "isError": True}}, indent=4
    ).encode(),
    '{"jsonrpc":"2.0","id":1,"result":{"content":["\u00e9\U0001f600"],"_meta":{"a":1}}}'.encode(),
    b'{"jsonrpc":"2.0","id":1,"result":{"content":["},\\"id\\":2}"]}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"tools":[%s]}}}' % HIDDEN.encode(),
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"a":' + b"[" * 124 + b"]" * 124 + b"}]}}",
])  # fmt: skip
def test_results_as_in_the_schema_take_the_fast_path(raw: bytes) -> None:
    assert agree(raw)


@each_row("raw", [
    *map(answering, (
        "{}", "[]", '{"content":[],"content":[]}', '{"c\\u006fntent":[]}', '{"tools":[]}',
        '{"content":[],"Tools":[]}', '{"content":["\\ud800"]}', '{"_meta":"%s"}' % ("x" * 20_000),
        '{"content":[' + "[" * 126 + "]" * 126 + "]}", '{"content":[]},"x":0',
        '{"content":[]},"error":{}',
    )),
    *(answering('{"content":[]}', id=id) for id in ('"jsonrpc"', "null", '"\\u0061"')),
    b"\xef\xbb\xbf" + EMPTY, EMPTY + b" {}", EMPTY.replace(b"[]", b'["\xff"]'),
])  # fmt: skip
def test_all_other_messages_take_the_slow_path(raw: bytes) -> None:
    assert short_way(raw) is None


@each_row("value", [raw for raw in NOT_JSON if raw.strip()])
def test_invalid_json_takes_the_slow_path(value: bytes) -> None:
    assert short_way(b'{"jsonrpc":"2.0","id":1,"result":{"content":[%s]}}' % value) is None


def test_a_message_over_the_limit_takes_the_slow_path() -> None:
    assert short_way(EMPTY, Limits(message=len(EMPTY))) is not None
    assert short_way(EMPTY, Limits(message=len(EMPTY) - 1)) is None


def test_without_msgspec_everything_takes_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: object) -> object:
        if name.partition(".")[0] == "msgspec":
            raise ImportError
        return real(name, *args)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(builtins, "__import__", refuse)
    member_reader.cache_clear()
    assert short_way(EMPTY) is None
    member_reader.cache_clear()


# Messages put together at random, then changed at random

SPACES = ["", "", "", " ", "\n", "  ", "\t", "\r\n"]
IDS = [
    "1", "0", '"a"', "-1", "1.0", "1e2", "null", '"\\u0061"', "12345678901234567", '"jsonrpc"',
    '""',
]  # fmt: skip
KEYS = ["content", "structuredContent", "isError", "_meta", "resultType", "tools", "x", "Content",
        "c\\u006fntent", "nextCursor", "inputSchema", "task", "result", "id"]  # fmt: skip
TEXTS = ["a", "\\n", "\\u0061", "\\ud83d\\ude00", "\\ud800", "\u00e9", '},\\"id\\":1}', "[", "{", '\\"', "\\\\",
         "tools", "inputSchema", '\\"name\\":\\"wipe_disk\\"', "\x7f", "\u2028", "wipe_disk"]  # fmt: skip
VALUES = ["1", "true", "null", "-0.5e+7", "[]", "{}", '""', "9" * 40, HIDDEN, f'{{"tools":[{HIDDEN}]}}',
          f"[{HIDDEN}]", '{"type":"text","text":"x"}', '{"a":{"b":[1,{"c":null}]}}']  # fmt: skip
SCRAPS = ['"', "\\", "{", "}", "[", "]", ",", ":", " ", "0", "1", "-", ".", "e", "t", "\x00", "\x1f",
          '"id"', '"id":1', ',"id":2', '"jsonrpc":"2.0"', ',"content":[]', "\ufeff", "\\u", "NaN"]  # fmt: skip


def random_message(chance: random.Random) -> bytes:
    space = [chance.choice(SPACES) for _ in range(4)] if chance.random() < 0.3 else [""] * 4
    comma, colon = f"{space[0]},{space[1]}", f"{space[2]}:{space[3]}"
    keys = chance.sample(KEYS[:5], chance.randint(1, 4))
    if chance.random() < 0.15:
        keys.insert(chance.randint(0, len(keys)), chance.choice(KEYS))
    result = comma.join(f'"{key}"{colon}{random_value(chance)}' for key in keys)
    id = chance.choice(IDS[:3]) if chance.random() < 0.8 else chance.choice(IDS)
    members = [f'"jsonrpc"{colon}"2.0"', f'"id"{colon}{id}', f'"result"{colon}{{{result}}}']
    chance.shuffle(members)
    if chance.random() < 0.05:
        members.insert(chance.randint(0, 3), chance.choice([*members, '"x":1', '"error":{}']))
    text = f"{space[0]}{{{space[1]}{comma.join(members)}{space[2]}}}{space[3]}"
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        at = chance.randint(0, len(text))
        text = text[:at] + chance.choice(["", *SCRAPS]) + text[at + chance.randint(0, 2) :]
    raw = text.encode()
    if chance.random() < 0.05:
        at = chance.randint(0, len(raw))
        raw = raw[:at] + bytes([chance.randint(0, 255)]) + raw[at:]
    return raw


def random_value(chance: random.Random, depth: int = 0) -> str:
    match chance.randint(0, 5 if depth < 4 else 2):
        case 0:
            return chance.choice(VALUES)
        case 1 | 2:
            return '"' + "".join(chance.choices(TEXTS, k=chance.randint(0, 4))) + '"'
        case 3:
            parts = (random_value(chance, depth + 1) for _ in range(chance.randint(0, 3)))
            return f"[{','.join(parts)}]"
        case _:
            keys = [chance.choice(KEYS + TEXTS) for _ in range(chance.randint(0, 3))]
            pairs = (f'"{key}":{random_value(chance, depth + 1)}' for key in keys)
            return f"{{{','.join(pairs)}}}"


@pytest.mark.parametrize("seed", range(4))
def test_both_paths_agree_on_random_messages(seed: int) -> None:
    chance = random.Random(seed)
    short = sum(agree(random_message(chance)) for _ in range(2500))
    assert short > 500  # else the test says nothing


ENVELOPE = ('"jsonrpc":"2.0"', '"id":1', '"result":{"content":[]}')


def test_each_member_of_the_envelope_stands_once_in_any_order() -> None:
    for members in product(ENVELOPE, repeat=3):
        raw = f"{{{','.join(members)}}}".encode()
        assert agree(raw) is (len(set(members)) == 3), raw


@each_row("size", [10, 20_000])
@each_row("space", [b"", b" \n", b"\r\n\t "])
def test_the_space_around_a_result_is_no_part_of_its_message(size: int, space: bytes) -> None:
    raw = answering('{"content":["\u00e9%s"]}' % ("x" * size))
    envelope = find_result_envelope(space + raw + space)
    assert envelope is not None
    assert envelope.response.place.raw == raw
