"""JSON-RPC messages: what two readers could read differently is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages import messages
from mcp_tool_filter.core.messages.limits import MOST_IN_BATCH, MOST_SEARCHED, OverLimit
from mcp_tool_filter.core.messages.messages import Batch, fold, id_value, ids_in, parse_message
from tests.make import answering, asking, message, refuses
from tests.rows import each_row


@each_row("raw", [
    b"[]", b"{}", b"null", b"[[]]", b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","id":1}',
    b'{"jsonrpc":"2.0","id":1,"method":null}',
    b'{"jsonrpc":"2.0","id":1,"method":{"a":1}}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":1}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}',
    b'{"jsonrpc":"2.0","id":1,"result":{},"params":{}}',
    b'{"jsonrpc":"2.0","id":1,"error":null}', b'{"jsonrpc":"2.0","id":1,"error":{}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":""}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"code":2,"message":""}}',
])  # fmt: skip
def test_json_without_the_shape_of_a_message_is_refused(raw: bytes) -> None:
    assert refuses(raw)


CALL = '"tools/call"'


@each_row("more", [
    '"m\\u0065thod":"ping"', f'"method\\u0000":{CALL}', f'"me\\ud800thod":{CALL}',
    f'"\\uff4dethod":{CALL}', '"params\\t":{"name":"x"}', '"ID":2', '"\\u0131d":2',
    '"JsonRpc":"2.0"', '"ERROR":{}', f'"__proto__":{{"method":{CALL}}}', '"0":1', '"-1":1',
    f'"constructor":{{"prototype":{{"method":{CALL}}}}}',
    f'"message":{{"method":{CALL}}}',
    f'"batch":[{{"jsonrpc":"2.0","method":{CALL}}}]',
    '"body":"{\\"jsonrpc\\":\\"2.0\\",\\"method\\":\\"tools/call\\"}"',
])  # fmt: skip
def test_a_key_that_some_reader_takes_for_another_is_refused(more: str) -> None:
    """Go, .NET and cJSON forget case, C cuts at NUL, PHP sees a list, JavaScript a prototype."""
    raw = asking("ping")[:-1] + b"," + more.encode() + b"}"
    assert refuses(raw)
    assert refuses(b"[" + raw + b"]")


@each_row("method", [
    "Tools/Call", "tools/call\\n", "tools/call\\u0000/x", "tools/call/", "tools//call",
    "tools:call", "toolsCall", "tools\\\\call", "tools%252Fcall", "tools/call?x=1", "tools/call;x",
    "x/../tools/call", "$/tools/call", "tools\\u2215call", "tool\\u017f/call", "too\\u200bls/call",
    "tools/c\\u00adall", "tools/call\\ufeff", "tools/c\\ud800all", "ping\\ud800",
])  # fmt: skip
def test_a_method_that_some_reader_takes_for_a_call_is_refused(method: str) -> None:
    assert refuses(asking(method))


def test_a_batch_has_the_bytes_of_its_members() -> None:
    one, other = b'{"jsonrpc":"2.0", "method":"a"}', b'{"jsonrpc":"2.0","id":1.0,"result":{}}'
    members = messages.singles(parse_message(b"[ %b ,%b]" % (one, other)))
    assert [member.place.raw for member in members] == [one, other]


@pytest.mark.parametrize(("raw", "could_be"), [
    (b'{"client_name":"x","token_endpoint_auth_method":"none"}', False),
    (b'{"grant_types":[],"Method":1}', True),
    (b'{"a":[{"jsonrpc":1}]}', True),
    (b'"{\\"jsonrpc\\":\\"2.0\\"}"', True),
    (b"[1,2]", False),
])  # fmt: skip
def test_other_json_is_told_apart_from_messages(raw: bytes, could_be: bool) -> None:
    assert messages.is_json_rpc(raw) is could_be
    with pytest.raises(ProtocolError):
        messages.is_json_rpc(b"{'jsonrpc':1}")


@given(text=st.text())
def test_an_error_is_always_one_line_of_ascii_without_markup(text: str) -> None:
    """A strange tool name must not end a line, an event or a string."""
    reply = messages.render_error("1", -32601, text)
    assert reply.isascii()
    assert not set(reply) & set(b"\n<>&")  # a page that shows the bytes runs nothing
    assert isinstance(message(reply), messages.Response)
    assert json.loads(reply)["error"]["message"] == text


def test_a_long_method_is_judged() -> None:
    assert not messages.is_like_a_call("tools_" * 100_000)
    assert messages.is_like_a_call("tools_" * 100_000 + "call")


def test_a_batch_has_at_most_a_thousand_members() -> None:
    """Each is decided on its own, and all others wait."""
    most = b",".join([asking("ping")] * MOST_IN_BATCH)
    assert isinstance(parse_message(b"[" + most + b"]"), Batch)
    with pytest.raises(OverLimit, match="more than 1000 messages in one batch"):
        parse_message(b"[" + most + b"," + asking("ping") + b"]")


def test_an_unknown_member_with_too_many_parts_is_refused() -> None:
    """(Without a word of a message in it, it passes at any length.)"""
    many = ",".join(['{"a":1}'] * MOST_SEARCHED)
    before = '{"jsonrpc":"2.0","id":1,"method":"x","y":['
    assert isinstance(parse_message(f"{before}{many}]}}".encode()), messages.Request)
    with pytest.raises(OverLimit):
        parse_message(f'{before}"\u00e9",{many}]}}'.encode())
    with pytest.raises(OverLimit):
        parse_message(f'{before}"method",{many}]}}'.encode())


def test_a_method_has_at_most_a_thousand_characters() -> None:
    parse_message(asking("x" * 1000))
    with pytest.raises(ProtocolError, match="a method longer than 1000"):
        parse_message(asking("x" * 1001))


@each_row("disguise", [
    "Method", "meth\u00adod", "m\uff45thod", "meth\\u006fd", "metho\\td", "JSONRPC", "json\\rrpc",
])  # fmt: skip
@each_row("value", ['{"%s":1}', '[[{"a":{"%s":"x"}}]]', '{"a\u00e9":0,"%s":1}'])
def test_disguised_messages_in_unknown_members_are_refused(disguise: str, value: str) -> None:
    foreign = value % disguise
    with pytest.raises(ProtocolError, match="a message within a message"):
        parse_message(f'{{"jsonrpc":"2.0","id":1,"method":"x","y":{foreign}}}'.encode())


def test_a_long_key_of_marks_is_not_normalized() -> None:
    """Normalizing is quadratic in a run of combining marks."""
    assert fold("name" + "\u0301\u0316" * 500_000) == "name"
    assert fold("\u00e9" * 1_000_000) == "\u00e9" * 1_000_000


@each_row("key", [
    "NAME", " name ", "name\0", "name\0x", "\uff4e\uff41\uff4d\uff45", "n\u200bame", "na\ud800me",
    "name\u0301", "\x7fname", "na\tme", "name\u00a0", "\ufeffname",
])  # fmt: skip
def test_a_key_folds_like_a_lenient_reader_reads_it(key: str) -> None:
    assert fold(key) == "name"


@pytest.mark.parametrize("key", ["param\u017f", "PARAM\u017f"], ids=ascii)
def test_letters_that_fold_only_in_some_languages_fold(key: str) -> None:
    """Go matches a long s to an s; Java a dotless i to an i."""
    assert fold(key) == "params"
    assert fold("\u0131d") == fold("\u0130d") == "id"


@each_row("id", ["true", "false", "{}", "[]", "[1]", '"\\ud800"'])
def test_an_id_is_a_string_or_a_number(id: str) -> None:
    assert refuses(asking("ping", id=id))


@each_row(("raw", "ids"), [
    (b'{"id":1.0,"method":"Tools/Call"}', ["1.0"]),
    (b'{"params":{"id":2},"id":"a"}', ['"a"']),
    (b'[{"id":1},{"id":2},{}]', ["1", "2"]),
    (b'{"id":1,"id":2}', []), (b'{"id":1,"ID":2}', []), (b'{"id":null}', []), (b'{"id":{}}', []),
    (b'{"id":"\\ud800"}', []), (b'{"id":1', []), (b"1", []),
])  # fmt: skip
def test_a_refusal_has_an_id_only_if_it_is_certain(raw: bytes, ids: list[str]) -> None:
    assert ids_in(raw) == ids


@each_row(("raw", "ids"), [
    (b'{"id": 1, "x', ["1"]),
    (b'{"id":"a\\"b","x', ['"a\\"b"']),
    (b'{"x":' + b" " * 10_000 + b',"id":-1.5e3}', ["-1.5e3"]),
    (b'{"id":1,"arguments":{"id":2},', ["1", "2"]),
    (b'{"id":"a\nb"}', []), (b'{"id":"\\x"}', []), (b'{"id":"\xff"}', []), (b'{"id":01}', []),
    (b'{"id":1-2}', []), (b'{"id":true}', []), (b'{"x":"\\"id\\":1"}', []),
])  # fmt: skip
def test_a_valid_id_of_an_unreadable_message_is_guessed(raw: bytes, ids: list[str]) -> None:
    """It is written into our answer as it stands."""
    assert messages.ids_guessed_in(raw) == ids


LONG = '"' + "\\u0061" * 3000 + '"'


def test_an_exponent_of_many_digits_is_not_computed() -> None:
    """Python refuses to read more than 4300 digits as a number."""
    for written in ("1e" + "9" * 5000, "1e-" + "9" * 5000):
        assert id_value(written) == id_value(written)
        assert id_value(written) != id_value("1")
    assert id_value("1e" + "0" * 5000 + "1") == id_value("10")


@pytest.mark.parametrize("raw", [asking("ping", id=LONG), answering("{}", id="9" * 20_000)])
def test_an_overlong_id_is_refused(raw: bytes) -> None:
    """We remember ids: 9 MB would be a lot to remember."""
    with pytest.raises(ProtocolError, match="an id that is longer"):
        parse_message(raw)
    assert ids_in(raw) == []


SPELLINGS = st.sampled_from(["", ".0", "e0", "E+0", ".00e00", "0e-1", "00.0E-2"])


@given(number=st.integers(), one=SPELLINGS, other=SPELLINGS)
def test_every_spelling_of_a_number_is_the_same_id(number: int, one: str, other: str) -> None:
    assert id_value(f"{number}{one}") == id_value(f"{number}{other}") == str(number)


@given(text=st.text())
def test_every_spelling_of_a_string_is_the_same_id(text: str) -> None:
    assert id_value(json.dumps(text)) == id_value(json.dumps(text, ensure_ascii=False))


@given(one=st.text() | st.integers(), other=st.text() | st.integers())
def test_different_ids_stay_different(one: str | int, other: str | int) -> None:
    assert (id_value(json.dumps(one)) == id_value(json.dumps(other))) == (one == other)
