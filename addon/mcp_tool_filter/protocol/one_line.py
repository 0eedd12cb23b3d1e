r"""Write a message on one line: a line end between tokens is ordinary white space.

>>> on_one_line(b'{\r\n  "a": "b\\n"\n}\n')
b'{    "a": "b\\n" }'
"""

from __future__ import annotations

from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.scan import scan


def on_one_line(message: bytes) -> bytes:
    """Return the message without line ends. Raises ProtocolError if it is not valid JSON.

    (Invalid JSON must not become valid: a line end within a string is an error.)
    """
    stripped = message.strip(b" \t\r\n")
    if b"\n" not in stripped and b"\r" not in stripped:
        return stripped
    scan(stripped, {}, Limits(message=max(1, len(stripped))))
    return stripped.replace(b"\r", b" ").replace(b"\n", b" ")
