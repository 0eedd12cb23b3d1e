"""Honest exchanges that strict filters break. Each passes byte for byte, both ways.

What a proxy must change is no more than the host, the codings it asks for, and how a body is cut
into chunks; ``plain`` leaves that out of the comparison.
"""
# ruff: noqa: E501 - tables

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import brotli
import zstandard

from tests.attacks.hostile_requests import FORM, HOST, JSON, LAST, chunked, post
from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_upstream import answer

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file"}}'
NEXT_PAGE = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"2"}}'
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
GET = b"GET /mcp HTTP/1.1\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n"
OK = answer(RESULT)
_OF_ONE_CONNECTION = (
    rb"host|accept-encoding|transfer-encoding|content-length|connection|keep-alive|te"
)
_CHANGED = re.compile(rb"(?im)^(?:%b):.*\r\n" % _OF_ONE_CONNECTION)


@dataclass(frozen=True)
class Exchange:
    name: str
    asked: bytes
    said: tuple[bytes, ...] = (OK,)
    ends: bool = False
    """The upstream hangs up behind its answer."""


def saying(status: str, head: bytes, body: bytes) -> bytes:
    size = b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 %s\r\n%s%s\r\n%s" % (status.encode(), head, size, body)


def getting(path: bytes, head: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\n%s%s\r\n" % (path, HOST, head)


def stream(*chunks: bytes, head: bytes = SSE, end: bytes = LAST) -> bytes:
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*chunks, end=end)


def plain(raw: bytes) -> tuple[list[bytes], bytes]:
    """Return a request or an answer as it should be the same on both sides of the proxy."""
    final = re.sub(rb"\A(?:HTTP/1\.1 1\d\d .*?\r\n\r\n)+", b"", raw, flags=re.DOTALL)
    head, _, body = final.partition(b"\r\n\r\n")
    if re.search(rb"(?im)^transfer-encoding: chunked", head):
        body = _unchunked(body)
    head = head.replace(b"HTTP/1.0", b"HTTP/1.1", 1)  # the version of one connection
    lines = _CHANGED.sub(b"", head + b"\r\n").split(b"\r\n")
    return [re.sub(rb":\s*", b": ", line, count=1).strip() for line in lines], body


def _unchunked(raw: bytes) -> bytes:
    body, at = b"", 0
    while (end := raw.find(b"\r\n", at)) >= 0 and (size := int(raw[at:end].partition(b";")[0], 16)):
        body += raw[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
    return body


def in_documents() -> Iterator[Exchange]:
    """What an upstream serves beside MCP."""
    for label, body in {
        "token": b"grant_type=authorization_code&code=a%2Fb&redirect_uri=http%3A%2F%2Flocalhost%3A1%2Fcb&client_id=x&code_verifier=y~z",
        "refresh": b"grant_type=refresh_token&refresh_token=abc.def-1&scope=tools%3Aread+tools%3Acall&resource=http://localhost/mcp",
        "introspection": b"token=abc&token_type_hint=access_token",
        "revocation": b"token=a%3D%3D&client_id=1",
        "consent": b"method=consent&approve=yes",
    }.items():
        token = answer(b'{"access_token":"x","token_type":"Bearer","scope":"tools:read"}')
        yield Exchange(f"OAuth form: {label}", post(body, path=b"/token", kind=FORM), (token,))
    registration = b'{"client_name":"c","redirect_uris":["http://localhost/cb"],"token_endpoint_auth_method":"none","grant_types":["authorization_code"]}'
    created = answer(b'{"client_id":"1","client_name":"c"}', status="201 Created")
    yield Exchange("OAuth registration", post(registration, path=b"/register"), (created,))
    resource = b'{"resource":"http://x/mcp","authorization_servers":["https://as.example"],"scopes_supported":["tools:call"]}'
    server = b'{"issuer":"https://as.example","token_endpoint":"https://as.example/token"}'
    for path, kind, content in [
        (b"/.well-known/oauth-protected-resource", "application/json", resource),
        (b"/.well-known/oauth-authorization-server", "application/json", server),
        (
            b"/.well-known/openid-configuration",
            "application/json; charset=utf-8",
            b'{"issuer":"x"}',
        ),
        (b"/health", "text/plain", b"ok"),
        (b"/", "text/html; charset=utf-8", "<!doctype html><p>\u00e9 use tools</p>".encode()),
        (b"/login", "text/html; charset=iso-8859-1", "<form>\u00e9</form>".encode("latin-1")),
        (b"/favicon.ico", "image/x-icon", bytes(range(256))),
        (b"/app.js", "text/javascript", b"var a = {};"),
        (b"/jwks.json", "application/jwk-set+json", b'{"keys":[]}'),
        (b"/metrics", "text/plain; version=0.0.4", b"# HELP x y\nx 1\n"),
        (b"/list.json", "application/json", b'["' + DENIED.encode() + b'",1]'),
        (b"/card", "application/json", b'{"name":"server","tools":[]}'),
        (b"/empty", "application/json", b""),
    ]:
        asked = getting(path, b"Accept: */*\r\n")
        yield Exchange(f"document {path.decode()}", asked, (answer(content, kind=kind),))


NUMBERS = "1.00,1E+2,-0,-0.0,1e400,1e-400,0.1e1,9007199254740993"


def calls() -> Iterator[tuple[str, str]]:
    text = CALL.decode()

    def with_member(member: str) -> str:
        return text.replace('"read_file"', f'"read_file",{member}')

    def with_arguments(arguments: str) -> str:
        return with_member(f'"arguments":{arguments}')

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
        "arguments with numbers": with_arguments(f'{{"n":[{NUMBERS},{"7" * 400},{"8" * 5000}]}}'),
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
        "_meta": with_member('"_meta":{"progressToken":"t","x/y":{"name":1}}'),
        "unknown member of params": with_member('"task":{"ttl":1},"vendor":[]'),
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
    params = '{"requestId":1,"progressToken":2}'
    for method in ("initialized", "cancelled", "progress", "roots/list_changed", "x"):
        said = f'{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}'
        yield f"notification {method}", said
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
    sampling = (
        b'data: {"jsonrpc":"2.0","id":"s","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1,"tools":[%b]}}\n\n'
        % ALLOWED_TOOL
    )
    log = (
        b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":{"name":"%b"}}}\n\n'
        % DENIED.encode()
    )
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
        "server requests": sampling + one,
        "elicitation": b'data: {"jsonrpc":"2.0","id":"s","method":"elicitation/create","params":{"message":"x","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}\n\n%b'
        % one,
        "list changed": b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n%b'
        % one,
        "log": log + one,
        "U+2028": b"data: " + RESULT.replace(b"[]", '["\u2028\u0085\u00e9"]'.encode()) + b"\n\n",
        "a batch": b"data: [" + RESULT + b"]\n\n",
        "large": b"data: " + RESULT.replace(b"[]", b'["' + b"x" * (2 << 20) + b'"]') + b"\n\n",
        "a thousand": progress * 1000 + one,
    }.items()


def in_bodies() -> Iterator[Exchange]:
    for label, text in (*calls(), *methods()):
        is_question = '"id"' in text and '"result"' not in text
        said = OK if is_question else answer(b"", status="202 Accepted")
        yield Exchange(f"asks: {label}", post(text.encode("utf-8", "surrogatepass")), (said,))
    for label, text in results():
        yield Exchange(f"answers: {label}", post(CALL), (answer(text.encode()),))
        if len(text) < 9000:
            event = SSE + b"\r\n", b"data: %b\n\n" % text.strip().encode()
            yield Exchange(f"answers in an event: {label}", post(CALL), event, ends=True)
    for label, said in events():
        yield Exchange(f"stream: {label}", post(CALL), (stream(said),))
        yield Exchange(f"stream on GET: {label}", GET, (stream(said),))
        measured = SSE + b"Content-Length: %d\r\n\r\n" % len(said) + said
        yield Exchange(f"stream with a length: {label}", post(CALL), (measured,))
        if label in ("large", "long by another name"):  # read in steps while a list is waited for
            yield Exchange(f"stream of a list: {label}", post(NEXT_PAGE), (stream(said),))
        both = SSE + b"\r\n", said
        yield Exchange(f"stream until the end: {label}", post(CALL), both, ends=True)
        if len(said) < 2000:
            pieces = (said[i : i + 1] for i in range(len(said)))
            both = stream(end=b""), chunked(*pieces)
            yield Exchange(f"stream in bytes: {label}", GET, both)


def in_requests() -> Iterator[Exchange]:
    """A call in every dress that real clients give it."""
    for label, coding, body in [
        ("gzip", "gzip", gzip.compress(CALL)),
        ("deflate", "deflate", zlib.compress(CALL)),
        ("br", "br", brotli.compress(CALL)),
        ("zstd", "zstd", zstandard.compress(CALL)),
        ("identity", "identity", CALL),
        ("GZIP", "GZIP", gzip.compress(CALL)),
    ]:
        header = b"Content-Encoding: %s\r\n" % coding.encode()
        yield Exchange(f"request in {label}", post(body, header))
    kinds = (
        "application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON",
        'application/json; charset="utf-8"', "application/json; profile=x",
        "application/vnd.mcp+json", "text/plain",
    )  # fmt: skip
    for kind in kinds:
        header = b"Content-Type: %s\r\n" % kind.encode()
        yield Exchange(f"request as {kind}", post(CALL, kind=header))
    yield Exchange("request without a type", post(CALL, kind=b""))
    paths = (
        b"/", b"/mcp/", b"/mcp?session=1&x=%20y", b"/a/b%2Fc", b"/messages?sessionId=2b1f",
        b"/mcp?method=list", b"/mcp?redirect=http://x/", b"//double", b"/%E4%B8%AD",
    )  # fmt: skip
    for path in paths:
        yield Exchange(f"path {path.decode()}", post(CALL, path=path))
    coded, region = base64.b64encode(b"read_file"), base64.b64encode("r\u00e9".encode())
    named = b"Mcp-Method: tools/call\r\nMcp-Name: read_file\r\n"
    for label, headers in {
        "session": b"Mcp-Session-Id: abc-1\r\nMCP-Protocol-Version: 2025-06-18\r\n",
        "authorization": b"Authorization: Bearer abc.def\r\nCookie: a=b; c=d\r\n",
        "mirrored": named + b"MCP-Protocol-Version: 2026-07-28\r\n",
        "mirrored in base64": named.replace(b"read_file", b"=?base64?%b?=" % coded),
        "mirrored parameter": named + b"Mcp-Param-Region: =?base64?%b?=\r\n" % region,
        "vendor": b"X-Vendor: \xc3\xa9 \"'()\r\nX-Empty:\r\ntraceparent: 00-1-2-01\r\nX-Twice: a\r\nX-Twice: b\r\n",
        "origin": b"Origin: http://localhost:5173\r\nReferer: http://localhost:5173/\r\nSec-Fetch-Mode: cors\r\n",
        "browser": b"User-Agent: Mozilla/5.0 (X11)\r\nAccept-Language: en;q=0.5\r\nDNT: 1\r\nCache-Control: no-cache\r\nPragma: no-cache\r\n",
        "keep-alive": b"Keep-Alive: timeout=5\r\nTE: trailers\r\nVia: 1.1 x\r\nX-Forwarded-For: 1.2.3.4\r\n",
        "underscore": b"x_api_key: abc\r\n",
        "30 KB": b"Cookie: a=" + b"x" * 30000 + b"\r\n",
    }.items():
        yield Exchange(f"headers: {label}", post(CALL, headers))
    head = b"POST /mcp HTTP/1.1\r\n" + HOST + JSON
    yield Exchange("a chunked request", stream(CALL[:9], CALL[9:], head=head))
    trailed = stream(CALL, head=head, end=b"0\r\nX-Checksum: abc\r\n\r\n")
    yield Exchange("a chunked request with trailers", trailed)
    for method, head in [
        ("GET", b""),
        ("HEAD", b""),
        ("OPTIONS", b"Origin: http://localhost\r\nAccess-Control-Request-Method: POST\r\n"),
        ("DELETE", b"Mcp-Session-Id: s\r\n"),
    ]:
        for status in ("200 OK", "204 No Content", "405 Method Not Allowed", "404 Not Found"):
            line = method.encode() + b" /mcp HTTP/1.1\r\n" + HOST + head + b"\r\n"
            body = b"" if method == "HEAD" or "204" in status else b"no\n"
            said = b"HTTP/1.1 %s\r\nAllow: POST\r\nContent-Type: text/plain\r\n%s\r\n%s" % (
                status.encode(),
                b"" if "204" in status else b"Content-Length: 3\r\n",
                body,
            )
            yield Exchange(f"{method} answered {status}", line, (said,))


def in_responses() -> Iterator[Exchange]:
    """An answer in every dress that real servers give it."""
    challenge = b'WWW-Authenticate: Bearer resource_metadata="http://x.example/.well-known/oauth-protected-resource", scope="tools"\r\n'
    no_session = b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Bad Request: Missing session ID"}}'
    other_session = (
        b'{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}'
    )
    for status, head, body in [
        ("401 Unauthorized", challenge, b'{"error":"invalid_token"}'),
        ("403 Forbidden", b'WWW-Authenticate: Bearer error="insufficient_scope"\r\n', b""),
        ("400 Bad Request", b"", no_session),
        ("404 Not Found", b"", other_session),
        ("404 Not Found", b"", b"Not Found"),
        ("405 Method Not Allowed", b"Allow: POST\r\n", b""),
        ("406 Not Acceptable", b"", b'{"detail":"no"}'),
        ("429 Too Many Requests", b"Retry-After: 1\r\n", b"slow down"),
        ("500 Internal Server Error", b"", b"Internal Server Error"),
        ("502 Bad Gateway", b"Content-Type: text/html\r\n", b"<html>bad</html>"),
        ("503 Service Unavailable", b"Retry-After: 3\r\n", b""),
    ]:
        said = saying(status, head, body)
        yield Exchange(f"a call answered {status} {body[:12]!r}", post(CALL), (said,))
    page = answer(b"<p>" * 100_000, status="500 X", kind="text/html")
    yield Exchange("a list answered by a long page", post(NEXT_PAGE), (page,))
    kind = b"Content-Type: application/json\r\n"
    for label, said in {
        "session": saying(
            "200 OK",
            b"Mcp-Session-Id: s1\r\nSet-Cookie: a=b; HttpOnly\r\nSet-Cookie: c=d\r\nX-Odd:  spaced \xe9\r\n"
            + kind,
            RESULT,
        ),
        "CORS": saying(
            "200 OK", b"Access-Control-Allow-Origin: *\r\nVary: Origin\r\n" + kind, RESULT
        ),
        "no type": saying("200 OK", b"", RESULT),
        "chunked": stream(RESULT[:5], RESULT[5:], head=b"HTTP/1.1 200 OK\r\n" + kind),
        "odd reason": saying("200 Fine, thanks", kind, RESULT),
        "no reason": saying("200 ", kind, RESULT),
    }.items():
        yield Exchange(f"answer head: {label}", post(CALL), (said,))
    head = b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n"
    yield Exchange("until the end", post(CALL), (head, RESULT), ends=True)
    head = head.replace(b"1.1", b"1.0")
    yield Exchange("HTTP/1.0 upstream", post(CALL), (head, RESULT), ends=True)
    yield Exchange("slow answer", post(CALL), tuple(OK[i : i + 7] for i in range(0, len(OK), 7)))
    for interim in (b"100 Continue", b"102 Processing", b"103 Early Hints"):
        label, line = interim.decode(), b"HTTP/1.1 " + interim + b"\r\n"
        yield Exchange(f"{label} before", post(CALL), (line + b"\r\n", OK))
        twice = (line + b"X: y\r\n\r\n") * 2 + OK
        yield Exchange(f"{label} twice in one", post(CALL), (twice,))
        streamed = line + b"\r\n" + stream(b"data: " + RESULT + b"\n\n")
        yield Exchange(f"{label} before a stream", post(CALL), (streamed,))
    for status, body in [
        ("202 Accepted", b""),
        ("202 Accepted", b"Accepted"),
        ("204 No Content", b""),
        ("200 OK", b""),
        ("202 Accepted", b"null"),
        ("202 Accepted", b'"ok"'),
    ]:
        size = b"" if "204" in status else b"Content-Length: %d\r\n" % len(body)
        said = b"HTTP/1.1 %s\r\n%s\r\n%s" % (status.encode(), size, body)
        notification = post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        response, label = (
            post(b'{"jsonrpc":"2.0","id":1,"result":{}}'),
            f"answered {status} {body!r}",
        )
        yield Exchange(f"a notification {label}", notification, (said,))
        yield Exchange(f"a response {label}", response, (said,))
    for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"):
        for where in ("/mcp/", "relative", "?x=1", "https://as.example/authorize?client_id=x"):
            said = saying(status, b"Location: %s\r\n" % where.encode(), b"")
            asked = getting(b"/authorize?response_type=code", b"")
            yield Exchange(f"redirect {status} to {where}", asked, (said,))
    within = saying("307 X", b"Location: /mcp/\r\n", b"")
    yield Exchange("redirect of a call within", post(CALL), (within,))
    known = getting(b"/app.js", b'If-None-Match: "a"\r\n')
    yield Exchange("304", known, (b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n',))


EXCHANGES = [*in_bodies(), *in_requests(), *in_documents(), *in_responses()]
