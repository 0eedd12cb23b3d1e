"""The words of which messages, streams and attacks are made.

>>> b"".join(TOKENS[number] for number in spelled(b'{"name":"read_file"}') or b"")
b'{"name":"read_file"}'
"""

# ruff: noqa: E501 - a table

from __future__ import annotations

import re
import string

_WORDS = (
    '"jsonrpc":"2.0"', '"id":', '"method":', '"params":', '"name":', '"arguments":', '"result":',
    '"error":', '"tools":', '"inputSchema":', '"cursor":', '"nextCursor":', '"_meta":', "{", "}",
    "[", "]", ",", '"tools/call"', '"tools/list"', '"initialize"', '"sampling/createMessage"',
    '"wipe_disk"', '"read_file"', "wipe_disk", '"Name":', '"NAME":', '"name\\u0000":', '"n\\u0061me":',
    '"__proto__":', '"content":', '"structuredContent":', "\\u0000", "\\ud800", "\\u200b", "\ufeff",
    "\u2028", "\x85", "\x0b", "\x1c", "\u0131", "\u017f", "NaN", "1e400", "-0", "1.0", "null",
    "data: ", "data:", "event: message\n", "event: endpoint\n", "event: ", "id: 1\n", "retry: 1\n",
    ": ", "\r", "\n", "\r\n", "\n\n", "\r\r", "Mcp-Name: ", "Mcp-Method: ", "Content-Encoding: br",
    "=?base64?", "?method=tools/call", "http://127.0.0.1:3000", "\\\\", "(?:", "(?!", "{1,2}",
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{', "}}}",
    '{"name":"wipe_disk","inputSchema":{"type":"object"}}', '{"name":"read_file","inputSchema":{"type":"object"}}',
    '{"jsonrpc":"2.0","id":1,"result":{', '{"jsonrpc":"2.0","method":"', '"description":"burns-it-all"',
    '{"tools":[', '"tools":{', '{"name":"wipe_disk"}', '"params":{"name":"wipe_disk"}', "]}}", '"structuredContent":{"tools":[',
    '"Tools":', '"tools\\u0000":', '"inputschema":', '"input_schema":', '"inputRequests":{"a":{"params":{"tools":[',
    '"RESULT":', '"result\\u0000":', '"TOOLS\u017f":', '"id":"1"', '"id":2', '"id":null', "[]", "{}", '""', "\0\0",
)  # fmt: skip
TOKENS = tuple(dict.fromkeys(word.encode() for word in (*_WORDS, *string.printable)))
"""No more than a byte can number."""
assert len(TOKENS) <= 256
_NUMBERS = {token: number for number, token in enumerate(TOKENS)}
_TOKEN = re.compile(b"|".join(map(re.escape, sorted(TOKENS, key=len, reverse=True))))
"""The longest that is there; of the tokens as long as another, none is its beginning."""


def spelled(raw: bytes) -> bytes | None:
    """Return the numbers of the tokens that make up the bytes, if there are such."""
    numbers = bytearray()
    at = 0
    while at < len(raw):
        found = _TOKEN.match(raw, at)
        if found is None:
            return None
        numbers.append(_NUMBERS[found[0]])
        at = found.end()
    return bytes(numbers)
