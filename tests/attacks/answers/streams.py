"""Lists in event streams that two parsers cut differently."""

from __future__ import annotations

from collections.abc import Iterator

from tests.attacks.answers.base import (
    ASKED,
    SSE,
    TOOLS,
    Attack,
    event,
    stream,
)
from tests.attacks.hostile_requests import chunked
from tests.mcp_upstream import RESULT
from tests.raw_upstream import answer


def in_streams() -> Iterator[Attack]:
    """Lists in event streams, in every framing."""
    half = len(TOOLS) // 2
    lines = TOOLS.replace(b", ", b",\n").split(b"\n")
    in_lines = b"".join(b"data: %s\n" % line for line in lines) + b"\n"
    for label, events in {
        "LF": event(TOOLS),
        "CRLF": event(TOOLS).replace(b"\n", b"\r\n"),
        "CR": event(TOOLS).replace(b"\n", b"\r"),
        "mixed": b"data: " + TOOLS + b"\r\n\n",
        "mixed 2": b"data: " + TOOLS + b"\n\r\n",
        "CR LF LF": b"data: " + TOOLS + b"\r\r\n",
        "no space": b"data:" + TOOLS + b"\n\n",
        "two spaces": b"data:  " + TOOLS + b"\n\n",
        "tab": b"data:\t" + TOOLS + b"\n\n",
        "BOM": b"\xef\xbb\xbf" + event(TOOLS),
        "BOM in the middle": event(RESULT) + b"\xef\xbb\xbf" + event(TOOLS),
        "many lines": in_lines,
        "many lines, CRLF": in_lines.replace(b"\n", b"\r\n"),
        "empty data line first": b"data\n" + event(TOOLS),
        "empty data line last": b"data: " + TOOLS + b"\ndata\n\n",
        "fields between": b"data: %s\nid: 1\n: x\nretry: 1\ndata: %s\n\n"
        % (TOOLS[:half], TOOLS[half:]),
        "id and event": event(TOOLS, b"id: 7\nevent: message\n"),
        "another event name": event(TOOLS, b"event: tools\n"),
        "event name twice": event(TOOLS, b"event: x\nevent: message\n"),
        "endpoint": event(TOOLS, b"event: endpoint\n"),
        "Endpoint": event(TOOLS, b"event: Endpoint\n"),
        "behind a comment": b": x\n" + event(TOOLS),
        "in a comment": b": " + TOOLS + b"\n\n",
        "in an id": b"id: " + TOOLS + b"\ndata: {}\n\n",
        "in an event name": b"event: " + TOOLS + b"\ndata: {}\n\n",
        "in an unknown field": b"tools: " + TOOLS + b"\n\n",
        "in a retry": b"retry: " + TOOLS + b"\n\n",
        "without a field name": b": \n" + TOOLS + b"\n\n",
        "Data": event(TOOLS).replace(b"data", b"Data"),
        "data with a space": b"data : " + TOOLS + b"\n\n",
        "space before data": b" data: " + TOOLS + b"\n\n",
        "line separator": b"id: 1\xe2\x80\xa8data: " + TOOLS + b"\n\n",
        "next line": b"id: 1\xc2\x85data: " + TOOLS + b"\n\n",
        "vertical tab": b"id: 1\x0bdata: " + TOOLS + b"\n\n",
        "form feed": b": 1\x0cdata: " + TOOLS + b"\n\n",
        "file separator": b": 1\x1cdata: " + TOOLS + b"\n\n",
        "NUL": b"id: 1\0data: " + TOOLS + b"\n\n",
        "unfinished": b"data: " + TOOLS,
        "unfinished line": b"data: " + TOOLS + b"\n",
        "two events": event(TOOLS) + event(TOOLS),
        "behind an answer": event(RESULT) + event(TOOLS),
        "behind what cannot be read": event(b"{") + event(TOOLS),
        "in a half event": b"data: %s\n\ndata: %s\n\n" % (TOOLS[:half], TOOLS[half:]),
        "Latin-1": event(TOOLS.replace(b'"x":1.0', b'"x":"\xe9"')),
        "lone surrogate": event(TOOLS.replace(b'"x":1.0', b'"x":"\xed\xa0\x80"')),
        "lone CR in the data": event(TOOLS.replace(b" , ", b"\r,data:")),
        "over the limit": b"data: " + b"x" * (21 << 20) + b"\n\n" + event(TOOLS),
        "list over the limit": event(TOOLS.replace(b"1e2", b'"' + b"x" * (11 << 20) + b'"')),
        "list over what is held": event(TOOLS.replace(b"1e2", b'"' + b"x" * (21 << 20) + b'"')),
        "as HTTP": answer(TOOLS),
        "no event at all": TOOLS,
    }.items():
        for what in ("tools/list", "GET"):
            yield Attack(f"{label} to {what}", (stream(events),), ASKED[what])
        if len(events) < 5000:
            whole = SSE + b"Content-Length: %d\r\n\r\n" % len(events) + events
            yield Attack(f"{label} with a length", (whole,))
            yield Attack(f"{label} until the end", (SSE + b"\r\n" + events,), ends=True)
            pieces = tuple(events[i : i + 3] for i in range(0, len(events), 3))
            yield Attack(f"{label} in pieces", (SSE + b"\r\n", *pieces), ends=True)
            once = (
                SSE
                + b"Transfer-Encoding: chunked\r\n\r\n"
                + chunked(*(events[i : i + 1] for i in range(len(events))))
            )
            yield Attack(f"{label} a byte each", (once,), ASKED["a resumed GET"])
