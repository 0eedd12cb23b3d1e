"""JSON-RPC messages: what two readers could read differently is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.limits import MOST_IN_BATCH, MOST_SEARCHED, OverLimit
from mcp_tool_filter.protocol.messages import (
    Batch,
    Notification,
    Request,
    Response,
    is_json_rpc,
    is_like_a_call,
    parse_message,
    render_error,
    singles,
)
from tests.make import asking, message, refuses, request


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', Request),
        (b'{"method":"ping","id":"a","jsonrpc":"2.0"}', Request),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', Request),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', Notification),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', Response),
        (b'{"jsonrpc":"2.0","id":1,"result":"text"}', Response),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":""}}', Response),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"","data":[]}}', Response),
        (b'{"jsonrpc":"2.0","error":{"code":-1,"message":""}}', Response),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', Batch),
    ],
)
def test_there_are_four_kinds_of_message(raw: bytes, kind: type) -> None:
    assert isinstance(parse_message(raw), kind)


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"{}",
        b"1",
        b'"x"',
        b"null",
        b"[1]",
        b"[[]]",
        b'[[{"jsonrpc":"2.0","id":1,"method":"ping"}]]',
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"},1]',
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"id":1,"method":"ping"}',
        b'{"jsonrpc":2.0,"id":1,"method":"ping"}',
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":null}',
        b'{"jsonrpc":"2.0","id":1,"method":["tools/call"]}',
        b'{"jsonrpc":"2.0","id":1,"method":{"a":1}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":1}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"params":{}}',
        b'{"jsonrpc":"2.0","id":null,"result":{}}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":null}',
        b'{"jsonrpc":"2.0","id":1,"error":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"code":2,"message":""}}',
        b'{"0":{"jsonrpc":"2.0","id":1,"method":"ping"}}',
    ],
)
def test_json_without_the_shape_of_a_message_is_refused(raw: bytes) -> None:
    assert refuses(raw)


CALL = '"tools/call"'


@pytest.mark.parametrize(
    "more",
    [
        '"method":"ping"',
        '"m\\u0065thod":"ping"',
        f'"Method":{CALL}',
        f'"METHOD":{CALL}',
        f'"method ":{CALL}',
        f'"method\\u0000":{CALL}',
        f'"method\\u0000x":{CALL}',
        f'"\\ufeffmethod":{CALL}',
        f'"me\\u200bthod":{CALL}',
        f'"me\\ud800thod":{CALL}',
        f'"\\uff4dethod":{CALL}',
        '"Params":{"name":"x"}',
        '"param\\u017f":{"name":"x"}',
        '"params\\t":{"name":"x"}',
        '"ID":2',
        '"\\u0131d":2',
        '"JsonRpc":"2.0"',
        '"Result":{}',
        '"ERROR":{}',
        f'"__proto__":{{"method":{CALL}}}',
        '"__PROTO__":{}',
        f'"0":{{"jsonrpc":"2.0","id":1,"method":{CALL}}}',
        '"0":1',
        '"-1":1',
        f'"constructor":{{"prototype":{{"method":{CALL}}}}}',
        f'"message":{{"method":{CALL}}}',
        f'"batch":[{{"jsonrpc":"2.0","method":{CALL}}}]',
        '"body":"{\\"jsonrpc\\":\\"2.0\\",\\"method\\":\\"tools/call\\"}"',
    ],
)
def test_a_key_that_some_reader_takes_for_another_is_refused(more: str) -> None:
    """Go, .NET and cJSON forget case, C cuts at NUL, PHP sees a list, JavaScript a prototype."""
    raw = asking("ping")[:-1] + b"," + more.encode() + b"}"
    assert refuses(raw)
    assert refuses(b"[" + raw + b"]")


@pytest.mark.parametrize(
    "method",
    [
        "Tools/Call",
        "TOOLS/CALL",
        " tools/call",
        "tools/call ",
        "tools/call\\n",
        "tools/call\\u0000",
        "tools/call\\u0000/x",
        "/tools/call",
        "tools/call/",
        "tools//call",
        "tools.call",
        "tools_call",
        "tools-call",
        "tools:call",
        "toolsCall",
        "tools\\\\call",
        "tools%2fcall",
        "tools%252Fcall",
        "tools/call?x=1",
        "tools/call#x",
        "tools/call;x",
        "x/../tools/call",
        "./tools/call",
        "$/tools/call",
        "tools\\u2215call",
        "\\uff54ools/call",
        "tool\\u017f/call",
        "too\\u200bls/call",
        "tools/c\\u00adall",
        "tools/call\\ufeff",
        "tools/c\\ud800all",
        "ping\\ud800",
    ],
)
def test_a_method_that_some_reader_takes_for_a_call_is_refused(method: str) -> None:
    assert refuses(asking(method))


@pytest.mark.parametrize("method", ["tools/call", "tools\\/call", "\\u0074ools/call"])
def test_a_method_may_be_spelled_with_escapes(method: str) -> None:
    assert request(asking(method)).method == "tools/call"


@pytest.mark.parametrize(
    "raw",
    [
        asking("vendor.acme/custom", params='{"name":1,"NAME":2,"name":3,"__proto__":{}}'),
        asking("tools/callback"),
        asking("tools/list"),
        asking("notifications/tools/list_changed"),
        asking("completion/complete", params="[1,2]"),
        asking("ping", params="null"),
        b'{"jsonrpc":"2.0","id":1,"method":"ping","extra":{"trace":[1]}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"method":"tools/call","jsonrpc":1}}',
    ],
)
def test_honest_messages_are_read(raw: bytes) -> None:
    assert message(raw).place.raw == raw


def test_a_batch_has_the_bytes_of_its_members() -> None:
    raw = b'[ {"jsonrpc":"2.0", "method":"a"} ,{"jsonrpc":"2.0","id":1.0,"result":{}}]'
    assert [one.place.raw for one in singles(parse_message(raw))] == [
        b'{"jsonrpc":"2.0", "method":"a"}',
        b'{"jsonrpc":"2.0","id":1.0,"result":{}}',
    ]


@pytest.mark.parametrize(
    ("raw", "could_be"),
    [
        (b'{"client_name":"x","token_endpoint_auth_method":"none"}', False),
        (b'{"grant_types":[],"Method":1}', True),
        (b'{"a":[{"jsonrpc":1}]}', True),
        (b'"{\\"jsonrpc\\":\\"2.0\\"}"', True),
        (b"[1,2]", False),
    ],
)
def test_other_json_is_told_apart_from_messages(raw: bytes, could_be: bool) -> None:
    assert is_json_rpc(raw) is could_be


def test_a_text_that_is_no_json_is_no_message() -> None:
    with pytest.raises(ProtocolError):
        is_json_rpc(b"{'jsonrpc':1}")


@given(text=st.text())
def test_an_error_is_always_one_line_of_ascii_without_markup(text: str) -> None:
    """A strange tool name must not end a line, an event or a string."""
    reply = render_error("1", -32601, text)
    assert reply.isascii()
    assert not set(reply) & set(b"\n<>&")  # a page that shows the bytes runs nothing
    assert isinstance(message(reply), Response)
    assert json.loads(reply)["error"]["message"] == text


def test_a_long_method_is_judged() -> None:
    assert not is_like_a_call("tools_" * 100_000)
    assert is_like_a_call("tools_" * 100_000 + "call")


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
    assert isinstance(parse_message(f"{before}{many}]}}".encode()), Request)
    with pytest.raises(OverLimit):
        parse_message(f'{before}"\u00e9",{many}]}}'.encode())
    with pytest.raises(OverLimit):
        parse_message(f'{before}"method",{many}]}}'.encode())


def test_a_method_has_at_most_a_thousand_characters() -> None:
    parse_message(asking("x" * 1000))
    with pytest.raises(ProtocolError, match="a method longer than 1000"):
        parse_message(asking("x" * 1001))


@pytest.mark.parametrize(
    "disguise",
    ["Method", "meth\u00adod", "m\uff45thod", "meth\\u006fd", "metho\\td", "JSONRPC", "json\\rrpc"],
)
@pytest.mark.parametrize("value", ['{"%s":1}', '[[{"a":{"%s":"x"}}]]', '{"a\u00e9":0,"%s":1}'])
def test_disguised_messages_in_unknown_members_are_refused(disguise: str, value: str) -> None:
    foreign = value % disguise
    with pytest.raises(ProtocolError, match="a message within a message"):
        parse_message(f'{{"jsonrpc":"2.0","id":1,"method":"x","y":{foreign}}}'.encode())
