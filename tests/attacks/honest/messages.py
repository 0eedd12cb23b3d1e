"""Honest messages: calls, other methods, results and events."""

# ruff: noqa: E501 - tables

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.attacks.honest.base import CALL, GET, NEXT_PAGE, OK, SSE, Exchange
from tests.attacks.hostile_requests import chunked, post
from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_upstream import answer


def calls() -> Iterator[tuple[str, str]]:
    text = CALL.decode()

    def with_arguments(arguments: str) -> str:
        return text.replace('"read_file"', f'"read_file","arguments":{arguments}')

    yield from {
        "plain": text,
        "spaced": f"\r\n\t {text.replace(',', ' ,\n').replace(':', ' :  ')} \r\n",
        "other order": '{"params":{"name":"read_file"},"method":"tools/call","id":1,"jsonrpc":"2.0"}',
        "escapes": text.replace("read_file", "read\\u005ffile").replace(
            "tools/call", "tools\\/call"
        ),
        "escaped keys": text.replace('"method"', '"\\u006dethod"').replace(
            '"name"', '"n\\u0061me"'
        ),
        "id as text": text.replace('"id":1', '"id":"a\\u0062\\"c"'),
        "id 0": text.replace('"id":1', '"id":0'),
        "id 1.0": text.replace('"id":1', '"id":1.0'),
        "id 1e3": text.replace('"id":1', '"id":1e3'),
        "id -1": text.replace('"id":1', '"id":-1'),
        "id null": text.replace('"id":1', '"id":null'),
        "id empty": text.replace('"id":1', '"id":""'),
        "id of 400 digits": text.replace('"id":1', '"id":' + "9" * 400),
        "id of 5000 digits": text.replace('"id":1', '"id":' + "9" * 5000),
        "notification": text.replace('"id":1,', ""),
        "arguments empty": with_arguments("{}"),
        "arguments null": with_arguments("null"),
        "arguments with the denied name": with_arguments(f'{{"name":"{DENIED}"}}'),
        "arguments with a whole call": with_arguments(
            f'{{"jsonrpc":"2.0","method":"tools/call","params":{{"name":"{DENIED}"}}}}'
        ),
        "arguments with a definition": with_arguments(DENIED_TOOL.decode()),
        "arguments with a list": with_arguments(f'{{"tools":[{DENIED_TOOL.decode()}]}}'),
        "arguments with duplicates": with_arguments(
            '{"a":1,"a":2,"name":"x","name":"y","Name":"z"}'
        ),
        "arguments with odd keys": with_arguments(
            '{"":1,"__proto__":{},"0":1,"\\u0000":2,"\\ud800":3,"constructor":{}}'
        ),
        "arguments with numbers": with_arguments(
            '{"n":[1.00,1E+2,-0,-0.0,1e400,1e-400,0.1e1,9007199254740993,'
            + "7" * 400
            + ","
            + "8" * 5000
            + "]}"
        ),
        "arguments with surrogates": with_arguments('{"s":"\\ud83d\\ude00 \\ud800 \\udc00"}'),
        "arguments with control escapes": with_arguments(
            '{"s":"\\u0000\\u0007\\u001b[31m\\u2028\\u007f"}'
        ),
        "arguments in UTF-8": with_arguments(
            '{"s":"\u00e9\u4e2d\U0001f600\u2028\u2029\u200b\ufeff\u0085\x7f"}'
        ),
        "arguments 120 deep": with_arguments("[" * 120 + "]" * 120),
        "arguments of 9 MB": with_arguments('{"s":"' + "x" * (9 << 20) + '"}'),
        "arguments of many keys": with_arguments(
            "{" + ",".join(f'"k{n}":{n}' for n in range(20000)) + "}"
        ),
        "arguments with brackets in text": with_arguments(
            '{"s":"' + "[{" * 500 + '\\"' + "}" * 500 + '"}'
        ),
        "_meta": text.replace(
            '"read_file"', '"read_file","_meta":{"progressToken":"t","x/y":{"name":1}}'
        ),
        "unknown member of params": text.replace(
            '"read_file"', '"read_file","task":{"ttl":1},"vendor":[]'
        ),
        "unknown member of the envelope": text[:-1] + ',"vendor":{"x":1},"traceparent":"00"}',
        "a batch": f"[{text} , {text.replace('1', '2')}]",
        "a batch of notifications": '[{"jsonrpc":"2.0","method":"notifications/initialized"}]',
    }.items()


def methods() -> Iterator[tuple[str, str]]:
    for method, params in [
        ("ping", None),
        ("ping", "{}"),
        ("ping", "null"),
        ("resources/list", "{}"),
        ("resources/list", '{"cursor":"a"}'),
        ("resources/read", f'{{"uri":"file:///{DENIED}"}}'),
        ("resources/templates/list", None),
        ("resources/subscribe", '{"uri":"x:y"}'),
        ("prompts/list", None),
        ("prompts/get", f'{{"name":"{DENIED}","arguments":{{"a":"b"}}}}'),
        ("logging/setLevel", '{"level":"debug"}'),
        (
            "completion/complete",
            f'{{"ref":{{"type":"ref/prompt","name":"{DENIED}"}},"argument":{{"name":"{DENIED}","value":""}}}}',
        ),
        ("tasks/list", "{}"),
        ("tasks/get", '{"taskId":"1"}'),
        ("tasks/result", '{"taskId":"1"}'),
        ("tasks/cancel", '{"taskId":"1"}'),
        ("server/discover", "{}"),
        ("subscriptions/listen", '{"notifications":{"toolsListChanged":true}}'),
        ("tools/list", '{"cursor":"a"}'),
        ("vendor/tools.run", f'{{"name":"{DENIED}"}}'),
        ("x", "[1,2]"),
        ("x", "[]"),
        ("tools", None),
        ("call", None),
        ("tools/called", None),
        ("rpc.discover", None),
        (
            "initialize",
            '{"protocolVersion":"2025-06-18","capabilities":{"roots":{},"sampling":{"tools":{}}},"clientInfo":{"name":"c","version":"1"}}',
        ),
    ]:
        more = "" if params is None else f',"params":{params}'
        yield f"{method} {params}", f'{{"jsonrpc":"2.0","id":1,"method":"{method}"{more}}}'
    for method in ("initialized", "cancelled", "progress", "roots/list_changed", "x"):
        yield (
            f"notification {method}",
            f'{{"jsonrpc":"2.0","method":"notifications/{method}","params":{{"requestId":1,"progressToken":2}}}}',
        )
    for label, text in {
        "a result": '{"jsonrpc":"2.0","id":"s1","result":{"roots":[{"uri":"file:///","name":"x"}]}}',
        "a sampled message": '{"jsonrpc":"2.0","id":1,"result":{"role":"assistant","model":"m","content":{"type":"tool_use","name":"x","input":{}}}}',
        "an elicited form": f'{{"jsonrpc":"2.0","id":1,"result":{{"action":"accept","content":{{"name":"{DENIED}"}}}}}}',
        "an error": '{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":{"a":1}}}',
    }.items():
        yield f"response of {label}", text


def results() -> Iterator[tuple[str, str]]:
    """Yield what an upstream may answer."""
    definition = DENIED_TOOL.decode()
    quoted = json.dumps(definition)
    for label, result in {
        "empty": "{}",
        "spaced": '{ "content" : [ ] }',
        "text": '{"content":[{"type":"text","text":"\\u00e9 \u2028 \\ud800"}],"isError":false}',
        "text of a definition": f'{{"content":[{{"type":"text","text":{quoted}}}]}}',
        "structured definition": f'{{"content":[],"structuredContent":{{"tools":[{definition}]}}}}',
        "a resource of a definition": f'{{"contents":[{{"uri":"x:y","text":{quoted}}}]}}',
        "a prompt about it": f'{{"messages":[{{"role":"user","content":{{"type":"text","text":{quoted}}}}}]}}',
        "prompts": f'{{"prompts":[{{"name":"{DENIED}","description":"x"}}]}}',
        "resources": f'{{"resources":[{{"name":"{DENIED}","uri":"x:y"}}]}}',
        "capabilities": '{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"prompts":{}},"serverInfo":{"name":"s","version":"1"},"instructions":"use tools"}',
        "numbers": '{"n":[1.00,1E5,-0.0,1e400,' + "1" * 400 + "," + "2" * 5000 + "]}",
        "duplicates": '{"a":1,"a":2}',
        "huge": '{"content":[{"type":"text","text":"' + "x" * (9 << 20) + '"}]}',
        "120 deep": '{"a":' + "[" * 120 + "]" * 120 + "}",
        "a value": "1",
        "a text": '"ok"',
        "null": "null",
        "a list": "[1,2]",
        "_meta": '{"_meta":{"x":{"name":"y"}},"nextCursor":"a"}',
        "a task": '{"task":{"taskId":"1","status":"working"}}',
        "completions": f'{{"completion":{{"values":["{DENIED}"],"total":1}}}}',
        "input required": '{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":""}}}}',
    }.items():
        yield label, f' {{"jsonrpc":"2.0","result":{result},"id":1}}\n'
    for label, error in {
        "error": '{"code":-32601,"message":"Method not found"}',
        "error with data": '{"code":-32000,"message":"\\u00e9","data":{"a":[1.0]}}',
        "error with the name": f'{{"code":-32602,"message":"no resource {DENIED}"}}',
    }.items():
        yield label, f'{{"jsonrpc":"2.0","id":1,"error":{error}}}'
    yield "error without an id", '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}'
    yield "list of allowed tools", tool_list([ALLOWED_TOOL]).decode()
    yield "list with a cursor", tool_list([ALLOWED_TOOL], more=b',"nextCursor" : "2"').decode()
    yield "empty list", tool_list([]).decode()


def events() -> Iterator[tuple[str, bytes]]:
    """Yield event streams."""
    one = b"data: " + RESULT + b"\n\n"
    progress = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1.0}}\n\n'
    yield from {
        "one": one,
        "notifications before": progress * 3 + one,
        "ids": b"id: 1\nevent: message\n" + progress + b"id: 2\n" + one,
        "comments": b": hi\n\n:\n\n" + one + b": ping - 2026-01-01 00:00:00+00:00\r\n\r\n",
        "CRLF": (progress + one).replace(b"\n", b"\r\n"),
        "CR": (progress + one).replace(b"\n", b"\r"),
        "retry": b"retry: 3000\n\n" + one,
        "an empty event with an id": b"id: 5\ndata: \n\n" + one,
        "an empty event with retry": b"id: 5\nretry: 10\ndata:\n\n" + one,
        "many lines": b"data: {\ndata:  " + RESULT[1:] + b"\n\n",
        "no space": b"data:" + RESULT + b"\n\n",
        "BOM": b"\xef\xbb\xbf" + one,
        "another name": b"event: heartbeat\ndata: 12\n\n" + one,
        "text by another name": b"event: ping\ndata: 2026-01-01T00:00:00Z\n\n" + one,
        "JSON by another name": b'event: x\ndata: {"a":[1.0]}\n\n' + one,
        "long by another name": b'event: x\ndata: ["' + b"x" * 300_000 + b'"]\n\n' + one,
        "unknown fields": b"x: y\nid: 3\n" + one,
        "blank lines": b"\n\n\n" + one + b"\n\n",
        "server requests": b'data: {"jsonrpc":"2.0","id":"s","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1,"tools":['
        + ALLOWED_TOOL
        + b"]}}\n\n"
        + one,
        "elicitation": b'data: {"jsonrpc":"2.0","id":"s","method":"elicitation/create","params":{"message":"x","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}\n\n'
        + one,
        "list changed": b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'
        + one,
        "log": b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":{"name":"'
        + DENIED.encode()
        + b'"}}}\n\n'
        + one,
        "U+2028": b"data: " + RESULT.replace(b"[]", '["\u2028\u0085\u00e9"]'.encode()) + b"\n\n",
        "a batch": b"data: [" + RESULT + b"]\n\n",
        "large": b"data: " + RESULT.replace(b"[]", b'["' + b"x" * (2 << 20) + b'"]') + b"\n\n",
        "a thousand": progress * 1000 + one,
    }.items()


def in_bodies() -> Iterator[Exchange]:
    for label, text in (*calls(), *methods()):
        said = (
            answer(b"", status="202 Accepted") if '"id"' not in text or '"result"' in text else OK
        )
        yield Exchange(f"asks: {label}", post(text.encode("utf-8", "surrogatepass")), (said,))
    for label, text in results():
        yield Exchange(f"answers: {label}", post(CALL), (answer(text.encode()),))
        if len(text) < 9000:
            yield Exchange(
                f"answers in an event: {label}",
                post(CALL),
                (SSE + b"\r\n", b"data: " + text.strip().encode() + b"\n\n"),
                ends=True,
            )
    for label, said in events():
        whole = SSE + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(said)
        yield Exchange(f"stream: {label}", post(CALL), (whole,))
        yield Exchange(f"stream on GET: {label}", GET, (whole,))
        yield Exchange(
            f"stream with a length: {label}",
            post(CALL),
            (SSE + b"Content-Length: %d\r\n\r\n" % len(said) + said,),
        )
        if label in ("large", "long by another name"):  # read in steps while a list is waited for
            yield Exchange(f"stream of a list: {label}", post(NEXT_PAGE), (whole,))
        yield Exchange(
            f"stream until the end: {label}", post(CALL), (SSE + b"\r\n", said), ends=True
        )
        if len(said) < 2000:
            pieces = tuple(said[i : i + 1] for i in range(len(said)))
            yield Exchange(
                f"stream in bytes: {label}",
                GET,
                (SSE + b"Transfer-Encoding: chunked\r\n\r\n", chunked(*pieces)),
            )
