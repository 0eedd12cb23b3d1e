"""Honest answers: statuses, heads, interim answers, redirects."""

# ruff: noqa: E501 - tables

from __future__ import annotations

from collections.abc import Iterator

from tests.attacks.honest.base import CALL, NEXT_PAGE, OK, SSE, Exchange
from tests.attacks.hostile_requests import HOST, chunked, post
from tests.mcp_upstream import RESULT
from tests.raw_upstream import answer


def in_responses() -> Iterator[Exchange]:
    """An answer in every dress that real servers give it."""
    for status, head, body in [
        (
            "401 Unauthorized",
            b'WWW-Authenticate: Bearer resource_metadata="http://x.example/.well-known/oauth-protected-resource", scope="tools"\r\n',
            b'{"error":"invalid_token"}',
        ),
        ("403 Forbidden", b'WWW-Authenticate: Bearer error="insufficient_scope"\r\n', b""),
        (
            "400 Bad Request",
            b"",
            b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Bad Request: Missing session ID"}}',
        ),
        (
            "404 Not Found",
            b"",
            b'{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}',
        ),
        ("404 Not Found", b"", b"Not Found"),
        ("405 Method Not Allowed", b"Allow: POST\r\n", b""),
        ("406 Not Acceptable", b"", b'{"detail":"no"}'),
        ("429 Too Many Requests", b"Retry-After: 1\r\n", b"slow down"),
        ("500 Internal Server Error", b"", b"Internal Server Error"),
        ("502 Bad Gateway", b"Content-Type: text/html\r\n", b"<html>bad</html>"),
        ("503 Service Unavailable", b"Retry-After: 3\r\n", b""),
    ]:
        said = b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (
            status.encode(),
            head,
            len(body),
            body,
        )
        yield Exchange(f"a call answered {status} {body[:12]!r}", post(CALL), (said,))
    page = answer(b"<p>" * 100_000, status="500 X", kind="text/html")
    yield Exchange("a list answered by a long page", post(NEXT_PAGE), (page,))
    for label, said in {
        "session": b"HTTP/1.1 200 OK\r\nMcp-Session-Id: s1\r\nSet-Cookie: a=b; HttpOnly\r\nSet-Cookie: c=d\r\nX-Odd:  spaced \xe9\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(RESULT)
        + RESULT,
        "CORS": b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nVary: Origin\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(RESULT)
        + RESULT,
        "no type": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(RESULT) + RESULT,
        "chunked": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunked(RESULT[:5], RESULT[5:]),
        "odd reason": b"HTTP/1.1 200 Fine, thanks\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(RESULT)
        + RESULT,
        "no reason": b"HTTP/1.1 200 \r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(RESULT)
        + RESULT,
    }.items():
        yield Exchange(f"answer head: {label}", post(CALL), (said,))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    yield Exchange("until the end", post(CALL), (head, RESULT), ends=True)
    yield Exchange(
        "HTTP/1.0 upstream", post(CALL), (head.replace(b"1.1", b"1.0"), RESULT), ends=True
    )
    yield Exchange("slow answer", post(CALL), tuple(OK[i : i + 7] for i in range(0, len(OK), 7)))
    for interim in (b"100 Continue", b"102 Processing", b"103 Early Hints"):
        yield Exchange(
            f"{interim.decode()} before", post(CALL), (b"HTTP/1.1 " + interim + b"\r\n\r\n", OK)
        )
        yield Exchange(
            f"{interim.decode()} twice in one",
            post(CALL),
            ((b"HTTP/1.1 " + interim + b"\r\nX: y\r\n\r\n") * 2 + OK,),
        )
        yield Exchange(
            f"{interim.decode()} before a stream",
            post(CALL),
            (
                b"HTTP/1.1 "
                + interim
                + b"\r\n\r\n"
                + SSE
                + b"Transfer-Encoding: chunked\r\n\r\n"
                + chunked(b"data: " + RESULT + b"\n\n"),
            ),
        )
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
        yield Exchange(
            f"a notification answered {status} {body!r}",
            post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'),
            (said,),
        )
        yield Exchange(
            f"a response answered {status} {body!r}",
            post(b'{"jsonrpc":"2.0","id":1,"result":{}}'),
            (said,),
        )
    for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"):
        for where in ("/mcp/", "relative", "?x=1", "https://as.example/authorize?client_id=x"):
            said = b"HTTP/1.1 %s\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (
                status.encode(),
                where.encode(),
            )
            get = b"GET /authorize?response_type=code HTTP/1.1\r\n" + HOST + b"\r\n"
            yield Exchange(f"redirect {status} to {where}", get, (said,))
    yield Exchange(
        "redirect of a call within",
        post(CALL),
        (b"HTTP/1.1 307 X\r\nLocation: /mcp/\r\nContent-Length: 0\r\n\r\n",),
    )
    yield Exchange(
        "304",
        b"GET /app.js HTTP/1.1\r\n" + HOST + b'If-None-Match: "a"\r\n\r\n',
        (b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n',),
    )
