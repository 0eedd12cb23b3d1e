"""A message says the same whether the ends of its long values are known or not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol import long_values, scan
from mcp_tool_filter.protocol.long_values import find_ends
from mcp_tool_filter.protocol.messages import is_json_rpc, parse_message
from tests.conversation.test_tool_results import bodies
from tests.protocol.json_texts import NOT_JSON, ODD_BUT_LEGAL
from tests.protocol.test_tool_results import random_message, random_value

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
    return scan.scan(raw, {"result": {"a": {}}, "params": {"a": scan.Few({})}})


def random_request(chance: random.Random) -> bytes:
    params = random_value(chance)
    method = chance.choice(["tools/call", "ping", "notifications/x", "Tools/Call"])
    raw = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method.encode(), params.encode())
    if chance.random() < 0.3:
        at = chance.randint(0, len(raw))
        raw = (
            raw[:at] + chance.choice([b"", b'"', b"}", b",", b"\\", b"[", b"\xff"]) + raw[at + 1 :]
        )
    return raw


@pytest.mark.parametrize("seed", range(4))
def test_random_messages_are_read_alike(seed: int) -> None:
    chance = random.Random(seed)
    known = sum(agree(random_message(chance)) for _ in range(800))
    known += sum(agree(random_request(chance)) for _ in range(800))
    assert known > 500  # else the test says nothing


def test_every_attack_is_read_alike() -> None:
    assert sum(map(agree, dict.fromkeys(bodies()))) > 100


@pytest.mark.parametrize("value", [*ODD_BUT_LEGAL, *NOT_JSON], ids=ascii)
@pytest.mark.parametrize("around", ["result", "params", "error", "x"])
def test_values_of_every_kind_are_read_alike(value: bytes, around: str) -> None:
    agree(b'{"jsonrpc":"2.0","id":1,"%s":{"a":%s,"b":[%s]}}' % (around.encode(), value, value))
    agree(b'{"jsonrpc":"2.0","id":1,"%s":%s}' % (around.encode(), value))
    agree(value)


@pytest.mark.parametrize("key", ["result", "params", "error"])
@pytest.mark.parametrize("text", ["x", "\u00e9", "\u6f22\U0001f600"])
def test_long_plain_values_have_known_ends(key: str, text: str) -> None:
    """They count characters, not bytes."""
    value = f'"{text * 100_000}"'
    message = f' {{"a":"{text}","{key}":{{"b": {value} ,"c":1,"d":[{value}]}},"e":{value}}}\n'
    found = find_ends(message.encode(), 128)
    assert [message[start] for start in sorted(found)] == ["{", "{", '"', "[", '"']
    assert [message[end - 1] for _, end in sorted(found.items())] == ["}", "}", '"', "]", '"']


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":%s,"b":1} 1',
        b'{"a":%s,}',
        b'{"a":%s,"b":"\\ud800"}',
        b"[%s]",
        b'{"a":%s,"b":' + b"[" * 128 + b"]" * 128 + b"}",
    ],
)
def test_odd_values_have_no_known_ends(raw: bytes) -> None:
    assert not find_ends(raw.replace(b"%s", b'"%s"' % (b"x" * 100_000)), 128)


@pytest.mark.parametrize(
    "raw", [b'{"a":%s,"a":1}', b'{"\\u0061":%s}', b'{"a":[1],"b":%s,"a":"1]"}']
)
def test_members_that_are_not_plain_have_no_known_ends(raw: bytes) -> None:
    long = raw.replace(b"%s", b'"%s"' % (b"x" * 100_000))
    assert find_ends(long, 128) == {0: len(long)}
