"""Headers that repeat arguments of a call, after a rule has rewritten it."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.http.head import param_headers_after
from mcp_tool_filter.protocol.messages import parse_message

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
SCHEMA = {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
DEFINITIONS = {
    "read": json.dumps({"name": "read", "inputSchema": SCHEMA}).encode(),
    "plain": b'{"name":"plain","inputSchema":{"type":"object"}}',
}
EU = {"mcp-param-region": "eu"}


def after(sent: dict[str, str], name: str, arguments: object, meta: object = META) -> object:
    params = {"name": name, "arguments": arguments, "_meta": meta}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return param_headers_after(sent, parse_message(json.dumps(call).encode()), DEFINITIONS)


@pytest.mark.parametrize(
    ("sent", "name", "arguments", "expected"),
    [
        (EU, "read", {"region": "eu", "other": 1}, []),
        (EU, "read", {"region": "us"}, [("mcp-param-region", "us")]),
        (EU, "read", {"region": "ü"}, [("mcp-param-region", "=?base64?w7w=?=")]),
        (EU, "read", {}, [("mcp-param-region", None)]),
        ({}, "read", {"region": "us"}, [("mcp-param-region", "us")]),
        (EU, "plain", {"region": "eu"}, [("mcp-param-region", None)]),
        (EU, "no tool that we know", {"region": "us"}, []),
    ],
)
def test_headers_follow_the_arguments_of_a_rewritten_call(
    sent: dict[str, str], name: str, arguments: object, expected: object
) -> None:
    assert after(sent, name, arguments) == expected


def test_earlier_revisions_have_no_such_headers() -> None:
    assert after({}, "read", {"region": "us"}, meta={}) == []
