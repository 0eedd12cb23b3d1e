"""A message says the same whether the ends of its long values are known or not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec import DecodeError

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages import scan
from mcp_tool_filter.core.messages import skim as long_values
from mcp_tool_filter.core.messages.limits import MOST_PARTS
from mcp_tool_filter.core.messages.messages import is_json_rpc, parse_message
from mcp_tool_filter.core.messages.skim import MemberReader, find_ends
from tests.core.messages.json_texts import NOT_JSON, ODD_BUT_LEGAL
from tests.core.messages.test_large import random_message, random_value
from tests.rows import each_row

NEVER = 1 << 40


def outcome(read: Callable[[bytes], object], raw: bytes) -> object:
    try:
        return read(raw)
    except ProtocolError as error:
        return str(error)


def agree(raw: bytes) -> bool:
    """Check that both ways say the same; tell whether any ends were known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_values, "_LONG", 0)
        found = []
        for least in (0, NEVER):
            patch.setattr(scan, "_LARGE", least)
            found.append([outcome(read, raw) for read in (parse_message, is_json_rpc, opened)])
        assert found[0] == found[1]
        try:
            raw.decode()
        except UnicodeDecodeError:
            return False
        return bool(find_ends(raw, 128))


def opened(raw: bytes) -> object:
    return scan.scan(raw, {"result": {"a": {}}, "params": {}})


def random_request(chance: random.Random) -> bytes:
    params = random_value(chance)
    method = chance.choice(["tools/call", "ping", "notifications/x", "Tools/Call"])
    raw = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method.encode(), params.encode())
    if chance.random() < 0.3:
        at = chance.randint(0, len(raw))
        scrap = chance.choice([b"", b'"', b"}", b",", b"\\", b"[", b"\xff"])
        raw = raw[:at] + scrap + raw[at + 1 :]
    return raw


@pytest.mark.parametrize("seed", range(4))
def test_random_messages_are_read_alike(seed: int) -> None:
    chance = random.Random(seed)
    known = sum(agree(random_message(chance)) for _ in range(800))
    known += sum(agree(random_request(chance)) for _ in range(800))
    assert known > 500  # else the test says nothing


@each_row("value", [*ODD_BUT_LEGAL, *NOT_JSON])
@each_row("around", ["result", "params", "error", "x"])
def test_values_of_every_kind_are_read_alike(value: bytes, around: str) -> None:
    agree(b'{"jsonrpc":"2.0","id":1,"%s":{"a":%s,"b":[%s]}}' % (around.encode(), value, value))
    agree(b'{"jsonrpc":"2.0","id":1,"%s":%s}' % (around.encode(), value))
    agree(value)


@each_row("key", ["result", "params", "error"])
@each_row("text", ["x", "\u00e9", "\u6f22\U0001f600"])
def test_long_plain_values_have_known_ends(key: str, text: str) -> None:
    """They count characters, not bytes."""
    value = f'"{text * 100_000}"'
    message = f' {{"a":"{text}","{key}":{{"b": {value} ,"c":1,"d":[{value}]}},"e":{value}}}\n'
    found = find_ends(message.encode(), 128)
    assert [message[start] for start in sorted(found)] == ["{", "{", '"', "[", '"']
    assert [message[end - 1] for _, end in sorted(found.items())] == ["}", "}", '"', "]", '"']


@pytest.mark.parametrize("raw", [
    b'{"a":%s,"b":1} 1', b'{"a":%s,}', b'{"a":%s,"b":"\\ud800"}', b"[%s]",
    b'{"a":%s,"b":' + b"[" * 128 + b"]" * 128 + b"}",
])  # fmt: skip
def test_odd_values_have_no_known_ends(raw: bytes) -> None:
    assert not find_ends(raw.replace(b"%s", b'"%s"' % (b"x" * 100_000)), 128)


@pytest.mark.parametrize("raw", [
    b'{"a":%s,"a":1}', b'{"\\u0061":%s}', b'{"a":[1],"b":%s,"a":"1]"}',
    b'{"a":%s' + b"".join(b',"%d":0' % number for number in range(MOST_PARTS)) + b"}",
])  # fmt: skip
def test_members_that_are_not_plain_have_no_known_ends(raw: bytes) -> None:
    long = raw.replace(b"%s", b'"%s"' % (b"x" * 100_000))
    assert find_ends(long, 128) == {0: len(long)}


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit msgspec's recursion for short texts, too, instead of counting their brackets."""
    monkeypatch.setattr(long_values, "_COUNTED", -1)


def is_read(by: MemberReader, written: bytes) -> bool:
    return by.read(written, 0, len(written)) is not None


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("kinds", ["[", "{", "[{", "{{["])
@pytest.mark.parametrize("inside", [b"1", b'"[["', b'{"a":[]}', b"[{}]"])
@pytest.mark.parametrize("most", [4, 20, 127, 128, 1000])
def test_the_depth_limit_is_exact(kinds: str, inside: bytes, most: int) -> None:
    """Also by a reader that has never read anything, and by one that has read much."""
    levels = most - 1 - (2 if inside[:1] in (b"[", b"{") else 0)
    fits, too_deep = (b'{"a":%s}' % nested(kinds, inside, n) for n in (levels, levels + 1))
    assert is_read(MemberReader(most), fits)
    assert not is_read(MemberReader(most), too_deep)
    used = MemberReader(most)
    for _ in range(100):
        assert is_read(used, fits)
        assert not is_read(used, too_deep)


def nested(kinds: str, value: bytes, levels: int) -> bytes:
    """Put a value into so many arrays and objects, of these kinds in turn."""
    for at in range(levels):
        value = (
            b'[1,"]",%s]' % value if kinds[at % len(kinds)] == "[" else b'{"[":%s,"k":1}' % value
        )
    return value


@pytest.mark.usefixtures("limited")
def test_the_depth_limit_does_not_depend_on_pythons_stack() -> None:
    fits, too_deep = b'{"a":%s}' % (b"[" * 9 + b"]" * 9), b'{"a":%s}' % (b"[" * 10 + b"]" * 10)
    ours = MemberReader(10)

    def within(levels: int) -> tuple[bool, bool]:
        if levels:
            return next(map(within, [levels - 1]))
        return is_read(ours, fits), is_read(ours, too_deep)

    for levels in (50, 0, 20, 150, 0, 100):
        assert not within(levels)[1]
    assert within(0) == (True, False)
    assert ours.read(b"{}", 0, 2) == {}


def test_invalid_json_raises_the_readers_own_error() -> None:
    with pytest.raises(DecodeError):
        MemberReader(5).read(b'{"a":[}', 0, 7)
