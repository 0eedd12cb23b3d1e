"""Check a request's head, and whether its body agrees with it.

HTTP can be misread like JSON: a repeated header, an unexpected body, ``Mcp_Name`` for ``Mcp-Name``.
The ``problem_in_…`` functions return the reason to refuse, or None.

A client sends the same names with each request. So we judge a set of names once, and then only look
up the result:

>>> read_names((b"Host", b"Content-Type", b"X-User"))
HeaderNames(places={b'host': 0, b'content-type': 1, b'x-user': 2}, problem=None, \
are_harmless=False, are_silent=True, credentials=frozenset(), askers=frozenset({b'x-user'}))
>>> read_names((b"Host", b"host")).problem, read_names((b"Mcp_Name",)).problem
('a header twice', 'a header that could be taken for another')
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.media_type import charsets_in, kind_of
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import (
    Batch,
    Message,
    Notification,
    Request,
    fold,
    is_json_rpc,
    is_like_a_call,
    parse_message,
)

LONGEST_KEPT = 4096  # bytes of all names
# If one of these is repeated, readers differ on which value counts.
_ONCE = frozenset({
    b"mcp-method", b"mcp-name", b"mcp-session-id", b"mcp-protocol-version", b"last-event-id",
    b"content-type", b"content-encoding", b"content-length", b"transfer-encoding", b"host",
})  # fmt: skip
_SAID = frozenset({
    b"mcp-method", b"mcp-name", b"mcp-session-id", b"mcp-protocol-version", b"content-encoding",
})  # fmt: skip
_CREDENTIALS = re.compile(
    rb"cookie|.*(?:api[-_]?key|access[-_]?key|token|secret|credential|auth|jwt|assertion|passw).*",
    re.IGNORECASE,
)
# What else may name a user or a group of users, or choose the tools to list. An upstream may list
# other tools to them; each is an asker of its own.
_ASKERS = re.compile(
    rb"from|accept-language|x-mcp-.*|(?!mcp-param-)mcp-.*|(?!sec-websocket-|mcp-param-).*(?:user|tenant|org|account|customer|member|person|principal|identity|subject|owner|role"
    rb"|group|team|workspace|project|realm|scope|profile|email|login|client-?id|company|consumer"
    rb"|namespace|subscription|permission|session|key|passport|entitlement|toolset).*"
)
# Names of the request itself: its id, its trace.
_OF_THE_REQUEST = re.compile(
    rb"(?:x-)?(?:(?:client|ms-client|amzn?|amz|vercel|goog)-)*"
    rb"(?:request|correlation|trace|span|transaction|operation|message|invocation|activity|event)"
    rb"-?id|(?:x-)?idempotency-key|x-b3-.*|b3|x-amzn-trace-id|x-cloud-trace-context|cf-ray"
    rb"|uber-trace-id|sentry-trace|x-datadog-.*|newrelic|elastic-apm-traceparent|grpc-trace-bin"
    rb"|x-request-start|x-(?:timestamp|nonce)"
)
HARMLESS = frozenset({
    # How the message is sent. We replace Host and Accept-Encoding.
    b"host", b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade",
    b"http2-settings", b"content-length", b"content-type", b"content-encoding",
    b"transfer-encoding", b"accept", b"accept-encoding", b"expect", b"priority", b"date",
    # Which program asks, and MCP's own headers, which are judged elsewhere.
    b"user-agent", b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name",
    b"last-event-id",
    # Which trace the request belongs to (not "baggage": that may name a user).
    b"traceparent", b"tracestate",
    # What a browser adds to every request.
    b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user",
    b"sec-fetch-storage-access", b"sec-ch-ua", b"sec-ch-ua-mobile", b"sec-ch-ua-platform",
    b"sec-gpc", b"dnt", b"upgrade-insecure-requests", b"cache-control", b"pragma",
})  # fmt: skip
"""An upstream cannot identify the asker by any of these; ``is_harmless`` knows more of them."""


@dataclass(frozen=True, slots=True)
class HeaderNames:
    places: Mapping[bytes, int]
    """Each name in lower case, and the index of its header; of repeated ones, the last."""
    problem: str | None
    """Why a request with these names is refused, or None."""
    are_harmless: bool
    """True if an upstream cannot identify the asker by any of them."""
    are_silent: bool
    """True if ``Head.said`` reads none of them."""
    credentials: frozenset[bytes]
    """The names by which an upstream could identify the asker."""
    askers: frozenset[bytes]
    """Those that make a request one of another asker, if their values differ."""


@lru_cache(maxsize=128)
def read_names(names: tuple[bytes, ...]) -> HeaderNames:
    """Return what header names tell.

    (Cached; for names above LONGEST_KEPT call ``__wrapped__``.)
    """
    places = {name.lower(): at for at, name in enumerate(names)}
    return HeaderNames(
        places,
        _problem_in(names, places),
        HARMLESS.issuperset(places) or all(map(is_harmless, places)),
        _SAID.isdisjoint(places),
        frozenset(filter(is_credential, places)),
        frozenset(filter(_is_of_asker, places)),
    )


def is_credential(name: bytes) -> bool:
    """Tell by its name whether a header may identify the asker to an upstream."""
    return _CREDENTIALS.fullmatch(name) is not None


def is_harmless(name: bytes) -> bool:
    """Tell whether an upstream cannot identify the asker by a header of this name."""
    return name in HARMLESS or _OF_THE_REQUEST.fullmatch(name) is not None


def _is_of_asker(name: bytes) -> bool:
    if is_harmless(name):
        return False
    return is_credential(name) or _ASKERS.fullmatch(name) is not None


def _problem_in(names: tuple[bytes, ...], places: Mapping[bytes, int]) -> str | None:
    if len(places) < len(names):
        once = [lower for name in names if (lower := name.lower()) in _ONCE]
        if len(set(once)) < len(once):
            return "a header twice"
    if any(map(_is_like_another, places)):
        return "a header that could be taken for another"
    return None


def _is_like_another(name: bytes) -> bool:
    plain = re.sub(rb"[^a-z0-9]+", b"-", name).strip(b"-")
    return name not in _ONCE and plain in _ONCE


_CODINGS = frozenset({b"transfer-encoding", b"content-transfer-encoding"})
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods of requests that carry no message."""
_BASE64_NAME = re.compile(r"=\?base64\?([A-Za-z0-9+/]*={0,2})\?=", re.IGNORECASE)
_NAMED = {"tools/call": ("name",), "prompts/get": ("name",), "resources/read": ("uri",)}
_LONGEST_HEAD = 64 * 1024  # bytes; an upstream that accepts less may reset the connection
LONGEST_VALUE = 32 * 1024  # bytes of one header or of the target; cookies and tokens need 8 KB
MOST_HEADERS = 500
_LONGEST_FORM = 256 * 1024  # bytes
_MOST_FIELDS = 1000  # of a form or a query
_BLANK = re.compile(r"[\0-\x20\x7f]")
_FORM = re.compile(rb"[A-Za-z0-9%&=+._~*!'(),:/@;$?-]*")


OUR_COOKIE = "mcp_tool_filter_token"
"""The name, or its beginning, of the dashboard's cookie: browsers send it to every port."""
_OUR_COOKIE = OUR_COOKIE.encode()
# What a head says of the bytes of its body: it is wrong for other bytes, and the digest of a list
# with hidden tools would show that there are some.
_OF_A_BODY = re.compile(
    rb"etag|content-(?:encoding|range|md5|length)|.*(?:digest|signature|checksum|sha-?(?:1|256|512))"
    rb"(?:-.*)?|x-goog-hash",
    re.IGNORECASE,
)


class McpHeaders(NamedTuple):
    """The values of the headers that matter for MCP; None if there is no such header."""

    session_id: str | None
    revision: str | None
    method: str | None
    name: str | None
    coding: str | None
    """The content coding. This and the next are HTTP headers that we need as often."""
    content_type: str | None


@dataclass(frozen=True)
class Head:
    """A request without its body."""

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    address: str = ""
    """The client's address, if the host tells it."""

    @cached_property
    def names(self) -> HeaderNames:
        """What the names of its headers tell."""
        names = tuple([name for name, _ in self.headers])
        if len(b"".join(names)) > LONGEST_KEPT:
            return read_names.__wrapped__(names)
        return read_names(names)

    @cached_property
    def said(self) -> McpHeaders:
        """The headers that matter for MCP."""
        get = self.get
        if self.names.are_silent:
            return McpHeaders(None, None, None, None, None, get(b"content-type"))
        session_id, revision = get(b"mcp-session-id"), get(b"mcp-protocol-version")
        method, name = get(b"mcp-method"), get(b"mcp-name")
        coding, kind = get(b"content-encoding"), get(b"content-type")
        return McpHeaders(session_id, revision, method, name, coding, kind)

    @cached_property
    def problem(self) -> tuple[str, bool] | None:
        """Why it is refused, and whether its size is the reason; a host may use a head again."""
        return problem_in_head(self)

    def get(self, name: bytes) -> str | None:
        """Return a header's value; ``name`` is written in lower case."""
        place = self.names.places.get(name)
        return None if place is None else self.headers[place][1].decode("latin-1").strip(" \t")

    @property
    def may_have_body(self) -> bool:
        return self.method not in WITHOUT_BODY

    @property
    def credentials(self) -> frozenset[bytes]:
        """The names of the headers by which an upstream could identify the asker."""
        return self.names.credentials


@lru_cache(maxsize=256)  # the same few come again and again
def describes_body(name: bytes) -> bool:
    """Tell whether a header of an answer is wrong once the body is another one.

    >>> [describes_body(name) for name in (b"ETag", b"Repr-Digest", b"Signature-Input", b"Date")]
    [True, True, True, False]
    """
    return _OF_A_BODY.fullmatch(name) is not None


def without_our_cookie(
    headers: tuple[tuple[bytes, bytes], ...],
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of a request without the dashboard's cookie: it is no upstream's business.

    >>> without_our_cookie(((b"Cookie", b"a=b; mcp_tool_filter_token_80=x"), (b"A", b"b")))
    ((b'Cookie', b'a=b'), (b'A', b'b'))
    """
    if not any(_OUR_COOKIE in value for _, value in headers):
        return headers
    kept = []
    for name, value in headers:
        if name.lower() == b"cookie":
            cookies = [one.strip() for one in value.split(b";")]
            value = b"; ".join(one for one in cookies if one and not one.startswith(_OUR_COOKIE))
            if not value:
                continue
        kept.append((name, value))
    return tuple(kept)


def problem_in_head(head: Head) -> tuple[str, bool] | None:
    """Return why a head is refused, and whether its size is the reason; else None."""
    if why := problem_in_size(head):
        return f"request too large: {why}", True
    why = problem_in_fields(head)
    return (why, False) if why else None


def problem_in_size(head: Head) -> str | None:
    """Return the reason to refuse a head longer than any honest one, since each check reads all of
    it."""
    if len(head.target) > LONGEST_VALUE:
        return f"a URL longer than {LONGEST_VALUE} bytes"
    if len(head.headers) > MOST_HEADERS:
        return f"more than {MOST_HEADERS} headers"
    length = sum(map(len, chain.from_iterable(head.headers)))
    if length <= LONGEST_VALUE:
        return None
    if max(map(len, chain.from_iterable(head.headers))) > LONGEST_VALUE:
        return f"a header longer than {LONGEST_VALUE} bytes"
    return f"headers longer than {_LONGEST_HEAD} bytes" if length > _LONGEST_HEAD else None


def problem_in_fields(head: Head) -> str | None:
    """Return the reason to refuse a head that the upstream could read differently than we do."""
    if head.method not in _METHODS:
        return "a method that no MCP client needs"
    if _BLANK.search(head.target) or not (head.target.startswith("/") or head.target == "*"):
        return "a target that is not a path"
    said = b"".join(chain.from_iterable(head.headers))
    if b"\r" in said or b"\n" in said or b"\0" in said:
        return "a control character in a header"
    names = head.names
    if names.problem:
        return names.problem
    if not _CODINGS.isdisjoint(names.places) and (why := _problem_in_codings(head)):
        return why
    if not _is_utf8(head.said.content_type or ""):
        return "a charset other than UTF-8"
    if "?" in head.target and _spells_a_call(head.target.partition("?")[2]):
        return "a message in the URL"
    return None


def _problem_in_codings(head: Head) -> str | None:
    if (head.get(b"transfer-encoding") or "chunked").lower() != "chunked":
        return "a transfer coding other than chunked"
    coding = (head.get(b"content-transfer-encoding") or "binary").lower()
    return None if coding in ("binary", "8bit", "7bit") else "a content transfer encoding"


def problem_in_body(head: Head, body: bytes, *, is_endpoint: bool, limits: Limits) -> str | None:
    """Return the reason to refuse a body that is neither a message nor one that OAuth servers
    expect."""
    if not body:
        alone = head.get(b"mcp-method") is None and head.get(b"mcp-name") is None
        return None if alone else "a header that announces a message, and no message"
    if head.method in WITHOUT_BODY:
        return f"a body on {head.method}"
    if is_endpoint or head.get(b"mcp-method") is not None or head.get(b"mcp-name") is not None:
        return "not a JSON-RPC message"
    kind = kind_of(head.said.content_type or "")
    if kind == "application/x-www-form-urlencoded" and _is_plain_form(body):
        return None
    try:
        return "not a JSON-RPC message" if is_json_rpc(body, limits) else None
    except ProtocolError as error:
        return str(error)


def problem_in_mirrored(head: Head, message: Message) -> str | None:
    """Return the reason to refuse headers that announce another message than the body is."""
    method, name = head.get(b"mcp-method"), head.get(b"mcp-name")
    if method is None and name is None:
        return None
    if isinstance(message, Batch) or not isinstance(message, Request | Notification):
        return "headers of a request on something else"
    if method is not None and method != message.method:
        return "Mcp-Method does not match the body"
    if name is not None and _decoded(name) not in _names_in(message):
        return "Mcp-Name does not match the body"
    return None


@lru_cache(maxsize=128)  # the same few come again and again
def _is_utf8(content_type: str) -> bool:
    return all(charset in ("utf-8", "utf8") for charset in charsets_in(content_type))


def _is_plain_form(body: bytes) -> bool:
    """Tell whether a body is a form that no server can take for a message."""
    if len(body) > _LONGEST_FORM:
        return False
    return _FORM.fullmatch(body) is not None and not _spells_a_call(body.decode())


def _spells_a_call(form: str) -> bool:
    """Tell whether some server may take the fields of a form, or of a query, for a message."""
    if not form:
        return False
    once = unquote_plus(form)
    if once.count("&") + once.count(";") >= _MOST_FIELDS:
        return True  # no honest form has so many, and reading them takes long
    fields = [  # some servers decode escapes twice
        field
        for text in dict.fromkeys((form, once))
        for field in parse_qsl(text.replace(";", "&"), keep_blank_values=True)
    ]
    return "jsonrpc" in unquote_plus(once).lower() or any(
        fold(key).startswith("method") and is_like_a_call(value) for key, value in fields
    )


def _decoded(name: str) -> str | None:
    if not name.lower().startswith("=?base64?"):
        return name
    match = _BASE64_NAME.fullmatch(name)
    try:
        return base64.b64decode(match[1], validate=True).decode() if match else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _names_in(message: Request | Notification) -> set[str]:
    """Return the allowed values of Mcp-Name; for methods unknown to the specification, several."""
    keys = _NAMED.get(message.method, ("name", "uri", "taskId"))
    values = [message.params.get(key) for key in keys] if message.params else []
    return {value.text for value in values if value and value.text is not None}


def headers_after(head: Head, body: bytes, limits: Limits) -> tuple[tuple[str, str | None], ...]:
    """Return the headers that must change to agree with a rewritten body."""
    method, name = head.get(b"mcp-method"), head.get(b"mcp-name")
    if method is None and name is None:
        return ()
    message = parse_message(body, limits)
    if isinstance(message, Batch) or not isinstance(message, Request | Notification):
        return (("mcp-method", None), ("mcp-name", None))
    changed: list[tuple[str, str | None]] = []
    if method is not None and method != message.method:
        changed.append(("mcp-method", message.method))
    names = _names_in(message)
    if name is not None and _decoded(name) not in names:
        changed.append(("mcp-name", _encoded(min(names)) if names else None))
    return tuple(changed)


def _encoded(name: str) -> str:
    """Encode a name as a header value."""
    is_plain = name.isascii() and name.isprintable() and name == name.strip()
    if is_plain and not name.lower().startswith("=?base64?"):
        return name
    return f"=?base64?{base64.b64encode(name.encode()).decode()}?="


def is_websocket(head: Head) -> bool:
    """Tell whether a request asks for a WebSocket, the only upgrade whose messages we can judge."""
    if head.method != "GET":
        return False
    names = [name.lower() for name, _ in head.headers]
    return (
        (head.get(b"upgrade") or "").lower() == "websocket"
        and head.get(b"sec-websocket-version") == "13"
        and all(names.count(name) == 1 for name in (b"upgrade", b"sec-websocket-version"))
    )
