"""What an entry tells of a client."""

from __future__ import annotations

from mcp_tool_filter.rooms.audit.facts import client_name_in
from tests.rows import each_row


@each_row(("params", "name"), [
    ('{"clientInfo":{"name":"a\\u001b[2J"}}', r"a\x1b[2J"),
    ('{"clientInfo":{"name":7},"_meta":null}', ""),
    ('{"clientInfo":"x"}', ""), ('{"a":1e400,"clientInfo":{"name":"b"}}', "b"),
    ('{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"new"}}}', "new"),
    ('{"_meta":{"clientInfo":{"name":"elsewhere"}}}', ""),
    ('{"clientInfo"', ""),
])  # fmt: skip
def test_a_clients_name_is_safe_to_show(params: str, name: str) -> None:
    assert client_name_in(params) == name
