"""Attacks by an upstream, or by what it is made to say: lists of tools wherever one may stand.

Each is a request and the bytes that the upstream answers with. Nothing by which the denied tool
is known may come to the client, in whatever coding.
"""
# ruff: noqa: E501 - tables

from __future__ import annotations

import gzip
import json
import quopri
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import brotli
import zstandard

from tests.attacks.hostile_requests import FORM, HOST, LAST, chunked, post
from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL, MARK
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_upstream import answer

LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
TOOLS = tool_list([ALLOWED_TOOL, DENIED_TOOL])
TEXT = TOOLS.decode()
DEFINITION = DENIED_TOOL.decode()
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
GET = b"GET /mcp HTTP/1.1\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n"
RESUME = GET[:-2] + b"Last-Event-ID: 4\r\n\r\n"
ACCEPT = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
ASKED = {
    "tools/list": post(LIST),
    "resources/list": post(LIST.replace(b"tools", b"resources")),
    "a ping": post(LIST.replace(b"tools/list", b"ping")),
    "a call": post(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file"}}'),
    "a notification": post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'),
    "a response": post(b'{"jsonrpc":"2.0","id":1,"result":{}}'),
    "a batch": post(b"[" + LIST + b"," + LIST.replace(b"1,", b"2,") + b"]"),
    "GET": GET,
    "a resumed GET": RESUME,
    "GET elsewhere": GET.replace(b"/mcp", b"/.well-known/mcp"),
    "DELETE": b"DELETE /mcp HTTP/1.1\r\n" + HOST + b"Mcp-Session-Id: s\r\n\r\n",
    "OPTIONS": b"OPTIONS /mcp HTTP/1.1\r\n" + HOST + b"\r\n",
    "HEAD": b"HEAD /mcp HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/1.0": post(LIST).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a form": post(b"grant_type=x", path=b"/token", kind=FORM),
}


@dataclass(frozen=True)
class Attack:
    name: str
    said: tuple[bytes, ...]
    """What the upstream writes, piece by piece; then it hangs up, if it ``ends``."""
    asked: bytes = ASKED["tools/list"]
    ends: bool = False


def event(data: bytes, more: bytes = b"") -> bytes:
    return more + b"data: " + data + b"\n\n"


def stream(*events: bytes, head: bytes = SSE, coding: bytes = b"", end: bytes = LAST) -> bytes:
    return head + b"Transfer-Encoding: %schunked\r\n\r\n" % coding + chunked(*events, end=end)


def measured(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def in_codings() -> Iterator[Attack]:
    """Answers in a coding that was not requested."""
    raw = zlib.compressobj(wbits=-15)
    raw_deflated = raw.compress(TOOLS) + raw.flush()
    for what in ("tools/list", "GET elsewhere", "a notification"):
        for coding, body in {
            "gzip": gzip.compress(TOOLS),
            "gzip of two members": gzip.compress(RESULT) + gzip.compress(TOOLS),
            "gzip cut short": gzip.compress(TOOLS)[:-4],
            "gzip and behind": gzip.compress(RESULT) + TOOLS,
            "gzip that is none": TOOLS,
            "deflate": zlib.compress(TOOLS),
            "deflate raw": raw_deflated if what == "tools/list" else zlib.compress(TOOLS),
            "br": brotli.compress(TOOLS),
            "zstd": zstandard.compress(TOOLS),
            "zstd of two frames": zstandard.compress(RESULT) + zstandard.compress(TOOLS),
            "gzip, gzip": gzip.compress(gzip.compress(TOOLS)),
            "x-gzip": gzip.compress(TOOLS),
            "compress": gzip.compress(TOOLS),
            "quopri": quopri.encodestring(TOOLS),
            "utf-7": TEXT.encode("utf-7"),
            "unknown": gzip.compress(TOOLS),
            "identity": TOOLS,
        }.items():
            value = coding if "," in coding else coding.partition(" ")[0]
            for status in ("200 OK", "500 X"):
                kind = f"application/json\r\nContent-Encoding: {value}"
                said = answer(body, status=status, kind=kind)
                yield Attack(f"{coding} with {status} to {what}", (said,), ASKED[what])
        packed = zlib.compressobj(wbits=31)
        flushed = packed.compress(event(TOOLS)) + packed.flush(zlib.Z_SYNC_FLUSH)
        said = stream(flushed, head=SSE + b"Content-Encoding: gzip\r\n", end=b"")
        yield Attack(f"gzip stream to {what}", (said,), ASKED[what])
    for charset in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7", "cp037"):
        with_charset = f"application/json; charset={charset}"
        for kind in ("application/json", "text/plain", with_charset, "text/event-stream"):
            body = event(TOOLS) if "event" in kind else TOOLS
            coded, label = body.decode().encode(charset), f"{charset} as {kind}"
            for what in ("tools/list", "GET"):
                yield Attack(f"{label} to {what}", (answer(coded, kind=kind),), ASKED[what])
            yield Attack(f"{label} with 500", (answer(coded, kind=kind, status="500 X"),))


def messages() -> Iterator[tuple[str, str]]:
    """Yield messages in which some client finds the denied tool."""
    params, name = f'{{"tools":[{DEFINITION}]}}', f'"name":"{DENIED}"'
    yield from {
        "plain": TEXT,
        "id 2": TEXT.replace('"id":1', '"id":2'),
        "id as text": TEXT.replace('"id":1', '"id":"1"'),
        "id 1.0": TEXT.replace('"id":1', '"id":1.0'),
        "id null": TEXT.replace('"id":1', '"id":null'),
        "no id": TEXT.replace(', "id":1', ""),
        "another id": TEXT.replace('"id":1', '"id":"never asked"'),
        "escaped name": TEXT.replace(DENIED, "wipe\\u005fdisk"),
        "escaped key": TEXT.replace('"tools"', '"t\\u006fols"').replace('"name"', '"n\\u0061me"'),
        "Tools": TEXT.replace('"tools"', '"Tools"'),
        "tools twice": TEXT.replace('"tools"', '"tools":[],"tools"'),
        "tools twice, empty last": TEXT.replace('}, "id"', ',"tools":[]}, "id"'),
        "tools with NUL": TEXT.replace('"tools"', '"tools\\u0000"'),
        "result twice": TEXT.replace('{"result"', '{"result":{},"result"'),
        "Result": TEXT.replace('"result"', '"Result"'),
        "result as list": f'{{"jsonrpc":"2.0","id":1,"result":[{DEFINITION}]}}',
        "result as text": f'{{"jsonrpc":"2.0","id":1,"result":{json.dumps(DEFINITION)}}}',
        "tools as map": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":{{"{DENIED}":{DEFINITION}}}}}}}',
        "tools as map without names": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":{{"{DENIED}":{{"inputSchema":{{}},"description":"{MARK}"}}}}}}}}',
        "tools as text": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":{json.dumps("[" + DEFINITION + "]")}}}}}',
        "nested lists": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[[{DEFINITION}]]}}}}',
        "array instead of tool": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[["{DENIED}","{MARK}"]]}}}}',
        "text instead of tool": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":["{DENIED}","{MARK}"]}}}}',
        "name twice": TEXT.replace(name, f'"name":"read_file",{name}'),
        "name twice, allowed last": TEXT.replace(name, f'{name},"name":"read_file"'),
        "Name": TEXT.replace(name, f'"Name":"{DENIED}"'),
        "name and Name": TEXT.replace(name, f'"name":"read_file","Name":"{DENIED}"'),
        "name as list": TEXT.replace(f'"{DENIED}"', f'["{DENIED}"]'),
        "no name": TEXT.replace(f"{name},", "").replace(name, '"title":"x"'),
        "no schema": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"name":"{DENIED}","description":"{MARK}"}}]}}}}',
        "schema as text": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"name":"{DENIED}","description":"{MARK}","inputSchema":"{{}}"}}]}}}}',
        "snake schema": TEXT.replace("inputSchema", "input_schema"),
        "under _meta": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[],"_meta":{{"all":[{DEFINITION}]}}}}}}',
        "under _meta of a tool's result": f'{{"jsonrpc":"2.0","id":1,"result":{{"content":[],"_meta":{{"all":[{DEFINITION}]}}}}}}',
        "under _meta of an allowed tool": TEXT.replace(
            DEFINITION, ALLOWED_TOOL.decode()[:-1] + f',"_meta":{{"sibling":{DEFINITION}}}}}'
        ),
        "under data": f'{{"jsonrpc":"2.0","id":1,"result":{{"data":{{"tools":[{DEFINITION}]}}}}}}',
        "single tool": f'{{"jsonrpc":"2.0","id":1,"result":{{"tool":{DEFINITION}}}}}',
        "the tool itself": f'{{"jsonrpc":"2.0","id":1,"result":{DEFINITION}}}',
        "error data": f'{{"jsonrpc":"2.0","id":1,"error":{{"code":1,"message":"x","data":{params}}}}}',
        "error data, one tool": f'{{"jsonrpc":"2.0","id":1,"error":{{"code":1,"message":"x","data":{DEFINITION}}}}}',
        "error beside": TEXT[:-1] + ',"error":{"code":1,"message":""}}',
        "a notification": f'{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{params}}}',
        "a message notification": f'{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{params}}}}}',
        "a vendor notification": f'{{"jsonrpc":"2.0","method":"notifications/x","params":{{"x":{DEFINITION}}}}}',
        "a request": f'{{"jsonrpc":"2.0","id":"s","method":"tools/list","params":{params}}}',
        "an elicitation": f'{{"jsonrpc":"2.0","id":"s","method":"elicitation/create","params":{{"message":"","tools":[{DEFINITION}]}}}}',
        "a capability": f'{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{"{DENIED}":{DEFINITION}}}}},"serverInfo":{{}}}}}}',
        "a task's result": f'{{"jsonrpc":"2.0","id":1,"result":{{"task":{{"result":{params}}}}}}}',
        "extra member": f'{{"jsonrpc":"2.0","id":1,"result":{{}},"tools":[{DEFINITION}]}}',
        "extra object": f'{{"jsonrpc":"2.0","id":1,"result":{{}},"x":{DEFINITION}}}',
        "batch": f"[{TEXT}]",
        "batch behind another": f"[{RESULT.decode()},{TEXT}]",
        "batch in batch": f"[[{TEXT}]]",
        "batch with a number": f"[1,{TEXT}]",
        "bare result": params,
        "bare list": f"[{DEFINITION}]",
        "bare tool": DEFINITION,
        "a map of tools": f'{{"{DENIED}":{DEFINITION}}}',
        "OpenAPI": f'{{"openapi":"3.1.0","paths":{{"/{DENIED}":{{"post":{{"summary":"{MARK}","x":{DEFINITION}}}}}}}}}',
        "OpenAI": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"type":"function","function":{DEFINITION}}}]}}}}',
        "wrapped": f'{{"message":{TEXT}}}',
        "no version": TEXT.replace(',"jsonrpc":"2.0"', ""),
        "version 1.0": TEXT.replace("2.0", "1.0"),
        "two documents": RESULT.decode() + TEXT,
        "two lines": RESULT.decode() + "\n" + TEXT + "\n",
        "a list behind a list": tool_list([ALLOWED_TOOL]).decode() + TEXT,
        "trailing comma": TEXT[:-1] + ",}",
        "comment": "/**/" + TEXT,
        "NaN": TEXT.replace("1e2", "NaN"),
        "NUL behind": TEXT + "\0",
        "BOM": "\ufeff" + TEXT,
        "anti-hijacking prefix": ")]}',\n" + TEXT,
        "while(1)": "while(1);" + TEXT,
        "JSONP": f"callback({TEXT})",
        "deep": TEXT.replace("1e2", "[" * 129 + "]" * 129),
        "very deep": TEXT.replace("1e2", "[" * 60000 + "]" * 60000),
        "cut short": TEXT[:-20],
        "cut behind the name": TEXT[: TEXT.index(MARK) + 20],
        "only the end": TEXT[60:],
        "as an event": f"data: {TEXT}\n\n",
        "HTML": f"<html><body><script>var x = {TEXT}</script></body></html>",
        "HTML, escaped": f"<pre>{TEXT.replace(chr(34), '&quot;')}</pre>",
        "XML": f"<tools><tool><name>{DENIED}</name><description>{MARK}</description><inputSchema/></tool></tools>",
        "YAML": f"tools:\n- name: {DENIED}\n  description: {MARK}\n  inputSchema:\n    type: object\n",
        "name with half a surrogate": TEXT.replace(f'"{DENIED}"', f'"{DENIED}\\ud800"'),
        "huge integer": TEXT.replace("1e2", "9" * 5000),
        "over the limit": TEXT.replace("1e2", '"' + "x" * (10 << 20) + '"'),
        "way over the limit": TEXT.replace("1e2", '"' + "x" * (21 << 20) + '"'),
    }.items()


def in_messages() -> Iterator[Attack]:
    for label, text in messages():
        body = text.encode("utf-8", "surrogatepass")
        small = len(body) < 1000
        yield Attack(f"{label} to tools/list", (answer(body),))
        if not small:
            yield Attack(f"{label} in a stream", (SSE + b"\r\n" + event(body),), ends=True)
            continue
        if "instead of" not in label:  # a list of mere names may be anything
            yield Attack(f"{label} to resources/list", (answer(body),), ASKED["resources/list"])
            yield Attack(f"{label} to a call", (answer(body),), ASKED["a call"])
        yield Attack(f"{label} to GET", (answer(body),), ASKED["GET elsewhere"])
        yield Attack(f"{label} with 500", (answer(body, status="500 X"),))
        not_there = answer(body, status="404 X", kind="text/plain")
        yield Attack(f"{label} with 404 as text", (not_there,))
        yield Attack(f"{label} as HTML to GET", (answer(body, kind="text/html"),), ASKED["GET"])
        data = b"\ndata: ".join(body.splitlines())
        yield Attack(f"{label} in a stream", (stream(event(data)),))
        yield Attack(f"{label} in a GET stream", (stream(event(data)),), GET)
        yield Attack(f"{label} in a named event", (stream(event(data, b"event: x\n")),), GET)


def in_places() -> Iterator[Attack]:
    """A plain list as the answer to everything, in every label and framing."""
    kinds = [
        "application/json", "text/event-stream", "text/plain", "text/html", "image/png", "",
        "application/octet-stream", "application/json; charset=utf-8",
        "application/json; charset=utf-16", "application/json; charset=latin1", "APPLICATION/JSON",
        "application/mcp+json", "application/x-ndjson", "application/json-seq",
        "multipart/mixed; boundary=x", "text/event-stream; charset=utf-7",
        "application/json, text/event-stream", "text/event-stream, application/json",
        "text/event-stream;charset=utf-16", " text/event-stream ;x",
    ]  # fmt: skip
    statuses = [
        "201 Created", "202 Accepted", "204 No Content", "206 Partial Content", "301 Moved",
        "304 Not Modified", "400 X", "401 X", "403 X", "404 X", "405 X", "409 X", "426 X", "500 X",
        "502 X", "599 X", "999 X",
    ]  # fmt: skip
    for what, asked in ASKED.items():
        for kind in kinds:
            data = event(TOOLS) if "event-stream" in kind else TOOLS
            yield Attack(f"{kind} to {what}", (answer(data, kind=kind),), asked)
        for status in statuses:
            yield Attack(f"{status} to {what}", (answer(TOOLS, status=status),), asked)
    for what in ("tools/list", "GET", "resources/list", "a notification"):
        asked = ASKED[what]
        for status in ("202 Accepted", "204 No Content", "304 Not Modified", "404 X", "500 X"):
            head = SSE.replace(b"200 OK", status.encode())
            whole = measured(head, event(TOOLS))
            yield Attack(f"{status} stream to {what}", (stream(event(TOOLS), head=head),), asked)
            yield Attack(f"{status} stream with a length to {what}", (whole,), asked)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        size, older = b"Content-Length: %d\r\n" % len(TOOLS), head.replace(b"1.1", b"1.0")
        switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n"
        for label, said in {
            "until the end": head + b"\r\n" + TOOLS,
            "HTTP/1.0": older + b"\r\n" + TOOLS,
            "HTTP/1.0 with a length": older + size + b"\r\n" + TOOLS,
            "HTTP/1.0 chunked": stream(TOOLS, head=older),
            "HTTP/2.0 as text": head.replace(b"1.1", b"2.0") + size + b"\r\n" + TOOLS,
            "HTTP/0.9": TOOLS,
            "chunked": stream(TOOLS, head=head),
            "a byte each": stream(*(TOOLS[i : i + 1] for i in range(len(TOOLS))), head=head),
            "CL and TE": stream(TOOLS, head=head + size),
            "TE twice": stream(TOOLS, head=head + b"Transfer-Encoding: chunked\r\n"),
            "TE gzip": head + b"Transfer-Encoding: gzip\r\n\r\n" + gzip.compress(TOOLS),
            "TE gzip, chunked": stream(gzip.compress(TOOLS), head=head, coding=b"gzip, "),
            "TE deflate, chunked": stream(zlib.compress(TOOLS), head=head, coding=b"deflate, "),
            "TE identity": head + b"Transfer-Encoding: identity\r\n\r\n" + TOOLS,
            "TE gzip stream": stream(gzip.compress(event(TOOLS)), coding=b"gzip, "),
            "trailers": stream(RESULT, head=head, end=b"0\r\nX-Tools: %s\r\n\r\n" % TOOLS),
            "CL twice": head + size + size + b"\r\n" + TOOLS,
            "CL too short": head + b"Content-Length: 2\r\n\r\n" + b"{}" + TOOLS,
            "CL too long": head + b"Content-Length: 9999\r\n\r\n" + TOOLS,
            "CL 0 and a body": head + b"Content-Length: 0\r\n\r\n" + TOOLS,
            "CL invalid": head + b"Content-Length: x\r\n\r\n" + TOOLS,
            "two answers": answer(RESULT) + answer(TOOLS),
            "an answer before": answer(RESULT, status="100 Continue") + answer(TOOLS),
            "100 with a body": measured(b"HTTP/1.1 100 Continue\r\n", TOOLS) + answer(RESULT),
            "103": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer(TOOLS),
            "103 with a list": b"HTTP/1.1 103 Early Hints\r\nX: %s\r\n\r\n" % TOOLS
            + answer(RESULT),
            "101": switching % b"x" + b"\r\n" + TOOLS,
            "101 websocket": switching % b"websocket"
            + ACCEPT
            + b"\x81\x7e"
            + len(TOOLS).to_bytes(2, "big")
            + TOOLS,
            "a header": answer(RESULT).replace(b"\r\n", b"\r\nX-Tools: " + TOOLS + b"\r\n", 1),
            "the reason": answer(RESULT).replace(b"200 OK", b"200 " + DENIED_TOOL, 1),
            "bare LF": (head + size + b"\r\n").replace(b"\r\n", b"\n") + TOOLS,
            "split by a bare CR": measured(
                b"HTTP/1.1 200 OK\r\nX: y\rContent-Length: 0\r\n", TOOLS
            ),
            "no HTTP": b"\x15\x03\x01" + TOOLS,
            "type twice": measured(
                SSE.replace(b"OK\r\n", b"OK\r\nContent-Type: text/plain\r\n"), event(TOOLS)
            ),
            "type underscored": measured(SSE.replace(b"-Type", b"_Type"), event(TOOLS)),
            "coding underscored": measured(
                head + b"Content_Encoding: gzip\r\n", gzip.compress(TOOLS)
            ),
        }.items():
            yield Attack(f"{label} to {what}", (said,), asked, ends=True)


def in_streams() -> Iterator[Attack]:
    """Lists in event streams, in every framing."""
    both_halves = TOOLS[: len(TOOLS) // 2], TOOLS[len(TOOLS) // 2 :]
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
        "fields between": b"data: %s\nid: 1\n: x\nretry: 1\ndata: %s\n\n" % both_halves,
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
        "in a half event": b"data: %s\n\ndata: %s\n\n" % both_halves,
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
            yield Attack(f"{label} with a length", (measured(SSE, events),))
            yield Attack(f"{label} until the end", (SSE + b"\r\n" + events,), ends=True)
            pieces = tuple(events[i : i + 3] for i in range(0, len(events), 3))
            yield Attack(f"{label} in pieces", (SSE + b"\r\n", *pieces), ends=True)
            once = stream(*(events[i : i + 1] for i in range(len(events))))
            yield Attack(f"{label} a byte each", (once,), RESUME)


ATTACKS = [
    Attack(f"{room.__name__}: {one.name}", one.said, one.asked, one.ends)
    for room in (in_messages, in_places, in_codings, in_streams)
    for one in room()
]
