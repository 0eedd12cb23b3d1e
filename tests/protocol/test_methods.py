"""What asks for something, with an id or without."""

from __future__ import annotations

import pytest

from mcp_tool_filter.protocol.messages import Batch, parse_message
from mcp_tool_filter.protocol.methods import is_request


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"vendor/do"}', True),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', True),
        (b'{"jsonrpc":"2.0","method":"tools/list"}', True),
        (b'{"jsonrpc":"2.0","method":"resources/read"}', True),
        (b'{"jsonrpc":"2.0","method":"notifications/cancelled"}', False),
        (b'{"jsonrpc":"2.0","method":"vendor/event"}', False),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', False),
    ],
)
def test_a_request_without_its_id_is_still_one(text: bytes, expected: bool) -> None:
    message = parse_message(text)
    assert not isinstance(message, Batch)
    assert is_request(message) is expected
