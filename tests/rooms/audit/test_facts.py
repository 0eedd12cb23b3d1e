"""What an entry tells of a client."""

from __future__ import annotations

from mcp_tool_filter.core.messages.messages import Response, parse_message
from mcp_tool_filter.rooms.audit.facts import client_name_in, problem_in
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


@each_row(("said", "problem"), [
    (b'"result":{"isError":true,"content":[{"type":"text","text":" No file\\nline 7"}]}',
     "No file"),
    (b'"result":{"isError":true,"content":[{"type":"image","data":""}]}', ""),
    (b'"result":{"isError":true}', ""),
    (b'"result":{"isError":true,"content":"x"}', ""),
    (b'"result":{"isError":"true","content":[{"type":"text","text":"fine"}]}', ""),
    (b'"result":{"content":[{"type":"text","text":"fine"}]}', ""),
    (b'"error":{"code":-1,"message":"Out of\\u001b tokens\\nat"}', r"Out of\x1b tokens"),
    (b'"error":{"code":-1,"message":"Half \\ud800"}', r"Half \ud800"),
])  # fmt: skip
def test_the_problem_is_the_first_line_of_an_errors_text(said: bytes, problem: str) -> None:
    message = parse_message(b'{"jsonrpc":"2.0","id":1,%b}' % said)
    assert isinstance(message, Response)
    assert problem_in(message) == problem
