"""Calls of the denied tool in every spelling, as the body of a request."""

# ruff: noqa: E501 - tables

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.attacks.hostile_requests.base import (
    ALLOWED,
    CALL,
    PING,
    PLAIN,
    Attack,
    post,
)
from tests.attacks.stage import DENIED


def bodies() -> Iterator[tuple[str, bytes]]:
    """Yield calls of the denied tool in every spelling, and what some parser makes one of."""
    name = f'"{DENIED}"'
    for label, text in {
        "plain": PLAIN,
        "spaced": f' \n{{ "method" : "tools/call" , "params":{{ "name" : {name} }},"id":7,'
        '"jsonrpc":"2.0"}\t',
        "escaped name": PLAIN.replace("wipe", "\\u0077ipe"),
        "escaped method": PLAIN.replace("tools/call", "tools\\/call"),
        "escaped keys": PLAIN.replace('"name"', '"n\\u0061me"').replace(
            '"params"', '"p\\u0061rams"'
        ),
        "escaped method key": PLAIN.replace('"method"', '"\\u006dethod"'),
        "notification": PLAIN.replace('"id":7,', ""),
        "null id": PLAIN.replace("7", "null"),
        "object id": PLAIN.replace("7", "{}"),
        "bool id": PLAIN.replace("7", "true"),
        "5000 digit id": PLAIN.replace("7", "7" * 5000),
        "no version": PLAIN.replace('"jsonrpc":"2.0",', ""),
        "version 1.0": PLAIN.replace("2.0", "1.0"),
        "version number": PLAIN.replace('"2.0"', "2.0"),
        "result beside": PLAIN.replace('"id"', '"result":{},"id"'),
        "error beside": PLAIN.replace('"id"', '"error":{"code":1,"message":""},"id"'),
        "name twice, allowed first": PLAIN.replace('{"name"', '{"name":"read_file","name"'),
        "name twice, allowed last": PLAIN.replace(f"{name}}}", f'{name},"name":"read_file"}}'),
        "name in another case": PLAIN.replace('{"name"', '{"name":"read_file","Name"'),
        "name in upper case only": PLAIN.replace('"name"', '"NAME"'),
        "name with NUL": PLAIN.replace('{"name"', '{"name":"read_file","name\\u0000x"'),
        "name after BOM": PLAIN.replace('{"name"', '{"name":"read_file","\\ufeffname"'),
        "params twice": PLAIN.replace('"params"', '"params":{"name":"read_file"},"params"'),
        "params twice, allowed last": PLAIN[:-1] + ',"params":{"name":"read_file"}}',
        "params in another case": PLAIN[:-1].replace('"params"', '"Params"')
        + ',"params":{"name":"read_file"}}',
        "params with long s": PLAIN[:-1].replace('"params"', '"param\u017f"')
        + ',"params":{"name":"read_file"}}',
        "method twice": PLAIN.replace('"method"', '"method":"ping","method"'),
        "method twice, ping last": PLAIN[:-1] + ',"method":"ping"}',
        "method in another case": PLAIN.replace('"method"', '"method":"ping","Method"'),
        "method with NUL": PLAIN.replace("tools/call", "tools/call\\u0000"),
        "method in upper case": PLAIN.replace("tools/call", "TOOLS/CALL"),
        "method with a space": PLAIN.replace("tools/call", "tools/call "),
        "method with a slash": PLAIN.replace("tools/call", "/tools/call"),
        "method dotted": PLAIN.replace("tools/call", "tools.call"),
        "method with a fullwidth slash": PLAIN.replace("tools/call", "tools\uff0fcall"),
        "method as URL": PLAIN.replace("tools/call", "tools%2Fcall"),
        "method as list": PLAIN.replace('"tools/call"', '["tools/call"]'),
        "name as list": PLAIN.replace(name, f"[{name}]"),
        "name as object": PLAIN.replace(name, f'{{"toString":{name}}}'),
        "params as list": PLAIN.replace(f'{{"name":{name}}}', f"[{name}]"),
        "params as text": PLAIN.replace(f'{{"name":{name}}}', json.dumps(f'{{"name":{name}}}')),
        "proto": PLAIN.replace(f'{{"name":{name}}}', f'{{"__proto__":{{"name":{name}}}}}'),
        "proto in the envelope": '{"__proto__":' + PLAIN + "}",
        "as an index": '{"0":' + PLAIN + "}",
        "within a message": PING[:-1].decode() + f',"message":{PLAIN}}}',
        "wrapped": f'{{"jsonrpc":"2.0","payload":{PLAIN}}}',
        "as text": json.dumps(PLAIN),
        "name with a space": PLAIN.replace(DENIED, DENIED + " "),
        "name with a line end": PLAIN.replace(DENIED, DENIED + "\\n"),
        "name in upper case letters": PLAIN.replace(DENIED, DENIED.upper()),
        "name in full width": PLAIN.replace(DENIED, "wipe\uff3fdisk"),
        "name with a zero width space": PLAIN.replace(DENIED, DENIED + "\u200b"),
        "name with half a surrogate": PLAIN.replace(DENIED, DENIED + "\\ud800"),
        "batch": f"[{PLAIN}]",
        "batch behind an allowed": f"[{ALLOWED.decode()},{PLAIN}]",
        "batch of batches": f"[[{PLAIN}]]",
        "batch with same ids": f"[{ALLOWED.decode()},{PLAIN},{PING.decode()}]",
        "batch with a number": f"[1,{PLAIN}]",
        "batch of notifications": f"[{PLAIN.replace('7', '8')},{PLAIN.replace(chr(34) + 'id' + chr(34) + ':7,', '')}]",
        "trailing comma": PLAIN[:-1] + ",}",
        "comment": "/*" + PLAIN + "*/" + PLAIN,
        "comment inside": PLAIN.replace('"id"', '/* */"id"'),
        "line comment": "//x\n" + PLAIN,
        "single quotes": PLAIN.replace('"', "'"),
        "bare keys": PLAIN.replace('"jsonrpc"', "jsonrpc"),
        "NaN": PLAIN.replace('"id"', '"x":NaN,"id"'),
        "plus": PLAIN.replace('"id"', '"x":+1,"id"'),
        "hex": PLAIN.replace('"id"', '"x":0x1,"id"'),
        "raw control in the name": PLAIN.replace(DENIED, DENIED + "\x01"),
        "two values": PING.decode() + PLAIN,
        "two lines": PING.decode() + "\n" + PLAIN,
        "record separators": "\x1e" + PING.decode() + "\n\x1e" + PLAIN + "\n",
        "as server-sent event": f"data: {PLAIN}\n\n",
        "anti-hijacking prefix": ")]}',\n" + PLAIN,
        "BOM": "\ufeff" + PLAIN,
        "space of another kind": "\u00a0" + PLAIN,
        "form feed before": "\x0c" + PLAIN,
        "NUL behind": PLAIN + "\0",
        "NUL before": "\0" + PLAIN,
        "deep": PLAIN.replace(f"{name}}}", f'{name},"arguments":' + "[" * 129 + "]" * 129 + "}"),
        "very deep": PLAIN.replace(f"{name}}}", f'{name},"a":' + "[" * 90000 + "]" * 90000 + "}"),
        "very deep before": '{"a":' + "[" * 90000 + "]" * 90000 + "," + PLAIN[1:],
        "unclosed": PLAIN[:-1],
        "unclosed deep": PLAIN + "[" * 100_000,
        "XML": f"<methodCall><methodName>tools/call</methodName><name>{DENIED}</name></methodCall>",
        "YAML": f"jsonrpc: '2.0'\nid: 7\nmethod: tools/call\nparams: {{name: {DENIED}}}\n",
        "form": f"jsonrpc=2.0&id=7&method=tools/call&params[name]={DENIED}",
        "form of JSON": "payload=" + PLAIN,
    }.items():
        yield label, text.encode("utf-8", "surrogatepass")
    for codec in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-7", "cp037"):
        yield codec, PLAIN.encode(codec)
    yield "overlong UTF-8", CALL.replace(b"wipe", b"\xc1\xb7ipe")
    yield "invalid UTF-8", CALL.replace(b"wipe", b"\xffwipe")
    yield "surrogates in UTF-8", CALL.replace(b"wipe", b"\xed\xa0\x80wipe")
    yield "over the limit", CALL[:-1] + b',"x":"' + b"x" * (10 << 20) + b'"}'
    yield "name behind 10 MB", CALL.replace(b'{"name', b'{"a":"' + b"x" * (10 << 20) + b'","name')


def in_bodies() -> Iterator[Attack]:
    for label, body in bodies():
        yield Attack(f"body: {label}", post(body))
    small = [(label, body) for label, body in bodies() if len(body) < 1000]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"):
        for label, body in small[:3] + small[-20:-8]:
            said = post(body, kind=b"Content-Type: %s\r\n" % kind.encode())
            yield Attack(f"{kind}: {label}", said)
    for path in (
        b"/",
        b"/sse",
        b"/messages?a=1",
        b"//mcp",
        b"/mcp/../mcp",
        b"/%6dcp",
        b"/oauth/token",
    ):
        for label, body in small[:2] + small[16:24]:
            yield Attack(f"{path.decode()}: {label}", post(body, path=path))
