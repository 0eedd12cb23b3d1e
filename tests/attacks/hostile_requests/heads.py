"""Calls in heads, and heads that two parsers read differently."""

# ruff: noqa: E501 - tables

from __future__ import annotations

import base64
from collections.abc import Iterator

from tests.attacks.hostile_requests.base import (
    ALLOWED,
    CALL,
    HOST,
    PING,
    SMUGGLED,
    Attack,
    post,
)
from tests.attacks.stage import DENIED


def in_heads() -> Iterator[Attack]:
    """Headers that make a message of an innocent body, or of none."""
    name = DENIED.encode()
    coded = b"=?base64?" + base64.b64encode(name) + b"?="
    method = b"Mcp-Method: tools/call\r\n"
    for label, headers in [
        ("plain", method + b"Mcp-Name: " + name + b"\r\n"),
        ("name only", b"Mcp-Name: " + name + b"\r\n"),
        ("base64", method + b"Mcp-Name: " + coded + b"\r\n"),
        (
            "base64 in upper case",
            method + b"Mcp-Name: " + coded.replace(b"base64", b"BASE64") + b"\r\n",
        ),
        ("base64 without padding", method + b"Mcp-Name: " + coded.replace(b"=?=", b"?=") + b"\r\n"),
        ("quoted-printable", method + b"Mcp-Name: =?utf-8?Q?" + name + b"?=\r\n"),
        ("RFC 2047", method + b"Mcp-Name: =?utf-8?b?" + base64.b64encode(name) + b"?=\r\n"),
        ("RFC 8187", method + b"Mcp-Name*: utf-8''" + name + b"\r\n"),
        ("per cent", method + b"Mcp-Name: wipe%5Fdisk\r\n"),
        ("quoted", method + b'Mcp-Name: "' + name + b'"\r\n'),
        ("twice, allowed first", method + b"Mcp-Name: read_file\r\nMcp-Name: " + name + b"\r\n"),
        ("twice, allowed last", method + b"Mcp-Name: " + name + b"\r\nmcp-name: read_file\r\n"),
        ("list", method + b"Mcp-Name: read_file, " + name + b"\r\n"),
        ("underscore", method + b"Mcp-Name: read_file\r\nMcp_Name: " + name + b"\r\n"),
        ("underscores only", b"Mcp_Method: tools/call\r\nMcp_Name: " + name + b"\r\n"),
        ("dots", method + b"Mcp.Name: " + name + b"\r\n"),
        ("space", method + b"Mcp Name: " + name + b"\r\n"),
        ("space before colon", method + b"Mcp-Name : " + name + b"\r\n"),
        ("leading dash", method + b"-Mcp-Name: " + name + b"\r\n"),
        ("folded", method + b"Mcp-Name:\r\n " + name + b"\r\n"),
        ("hidden by bare CR", b"X: y\rMcp-Name: " + name + b"\r\n" + method),
        ("hidden by bare LF", b"X: y\nMcp-Name: " + name + b"\n" + method),
        ("hidden by NUL", b"X: y\0\r\nMcp-Name: " + name + b"\0\r\n"),
    ]:
        bodies = {
            "ping": PING,
            "allowed": ALLOWED,
            "an empty object": b"{}",
            "nothing": b"",
            "null": b"null",
            "an empty list": b"[]",
            "a response": PING.replace(b'"method":"ping"', b'"result":{}'),
            "no name": ALLOWED.replace(b'{"name":"read_file"}', b"{}"),
        }
        for what, body in bodies.items():
            yield Attack(f"head {label}, body {what}", post(body, headers))
        yield Attack(f"head {label} on GET", b"GET /mcp HTTP/1.1\r\n" + HOST + headers + b"\r\n")
    for label, target in [
        ("query", b"/mcp?method=tools/call&name=" + name),
        (
            "query with version",
            b"/mcp?jsonrpc=2.0&id=1&method=tools%2Fcall&params=%7B%22name%22%3A%22wipe_disk%22%7D",
        ),
        (
            "query of JSON",
            b"/mcp?q="
            + b"%7B%22jsonrpc%22%3A%222.0%22%2C%22method%22%3A%22tools%2Fcall%22%2C%22name%22%3A%22wipe_disk%22%7D",
        ),
        ("semicolons", b"/mcp?id=1;method=tools/call;name=" + name),
        ("upper case", b"/mcp?METHOD=TOOLS/CALL&name=" + name),
        ("list", b"/mcp?method[]=tools/call&params[name]=" + name),
        ("escaped twice", b"/mcp?%256dethod=tools%252Fcall&name=" + name),
        ("NUL in the target", b"/mcp\0?method=tools/call&name=" + name),
        ("fragment", b"/mcp#?method=tools/call&name=" + name),
    ]:
        for verb in (b"GET", b"POST"):
            yield Attack(
                f"target {label} on {verb.decode()}",
                verb + b" " + target + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n",
            )
    override = b"X-HTTP-Method-Override: POST\r\nX-Method-Override: POST\r\n"
    yield Attack(
        "override on GET",
        b"GET /mcp HTTP/1.1\r\n"
        + HOST
        + override
        + b"Content-Length: %d\r\n\r\n" % len(CALL)
        + CALL,
    )
    yield Attack("override on PUT", post(CALL, override).replace(b"POST", b"PUT", 1))
    for label, line in [
        ("absolute, loopback", b"POST http://localhost/mcp HTTP/1.1"),
        ("absolute, elsewhere", b"POST http://evil.example/mcp HTTP/1.1"),
        ("absolute https", b"POST https://localhost/mcp HTTP/1.1"),
        ("absolute with user", b"POST http://localhost@evil.example/mcp HTTP/1.1"),
        ("absolute ws", b"POST ws://localhost/mcp HTTP/1.1"),
        ("absolute ftp", b"POST ftp://localhost/mcp HTTP/1.1"),
        ("authority form", b"POST localhost:80 HTTP/1.1"),
        ("asterisk", b"POST * HTTP/1.1"),
        ("asterisk OPTIONS", b"OPTIONS * HTTP/1.1"),
        ("no slash", b"POST mcp HTTP/1.1"),
        ("backslash", b"POST \\mcp HTTP/1.1"),
        ("CONNECT", b"CONNECT localhost:80 HTTP/1.1"),
        ("CONNECT elsewhere", b"CONNECT evil.example:80 HTTP/1.1"),
        ("tabs", b"POST\t/mcp\tHTTP/1.1"),
        ("form feed", b"POST\x0c/mcp HTTP/1.1"),
        ("four words", b"POST /mcp x HTTP/1.1"),
        ("leading space", b" POST /mcp HTTP/1.1"),
        ("leading blank line", b"\r\nPOST /mcp HTTP/1.1"),
    ]:
        yield Attack(f"line {label}", line + SMUGGLED[SMUGGLED.index(b"\r\n") :])
