"""Check a head, whether its body agrees with it, and which of its fields go on to the other side.

HTTP can be misread like JSON: a repeated header, an unexpected body, ``Mcp_Name`` for ``Mcp-Name``.
The ``problem_in_…`` functions return the reason to refuse, or None.

A client sends the same names with each request. So we judge a set of names once, and then only look
up the result:

>>> read_names((b"Host", b"Content-Type", b"X-User"))
HeaderNames(places={b'host': 0, b'content-type': 1, b'x-user': 2}, problem=None, \
are_harmless=False, are_silent=True, credentials=frozenset(), askers=frozenset({b'x-user'}))
>>> read_names((b"Host", b"host")).problem, read_names((b"Mcp_Name",)).problem
('a header twice', 'a header that could be taken for another')

Since revision 2026-07-28 some headers repeat parts of the body: ``Mcp-Method`` and ``Mcp-Name`` the
method and the name in its params; a tool's schema can require arguments to be mirrored as
``Mcp-Param-…`` (``x-mcp-header``). A stdio client sends none of these, so we add them when we
forward its messages over HTTP.

>>> from mcp_tool_filter.core.messages.messages import parse_message
>>> call = parse_message(
...     b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gr\\\\u00fc\\\\u00df",'
...     b'"arguments":{"region":"eu"},'
...     b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}'
... )
>>> for name, value in mirrored_headers(call, {"grüß": {("region",): "Region"}}):
...     print(name.decode(), value.decode())
mcp-protocol-version 2026-07-28
mcp-method tools/call
mcp-name =?base64?Z3LDvMOf?=
mcp-param-region eu

Fields about one connection stay on it. Links may not lead past us, and no field may show a hidden
tool. Peers repeat their heads with each message: the engine remembers a few of them, with the notes
that are made here, so that this is decided once.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import UTF_8, charsets_in, kind_of
from mcp_tool_filter.core.http.urls import WITH_URLS, UpstreamNames, keep_links, leads_away
from mcp_tool_filter.core.messages.limits import HTTP_TOKEN, META_REVISION, Limits
from mcp_tool_filter.core.messages.messages import (
    Batch,
    Message,
    Notification,
    Request,
    fold,
    is_json_rpc,
    is_like_a_call,
)
from mcp_tool_filter.core.messages.sizes import HEAD, MANY, URI

if TYPE_CHECKING:
    from mcp_tool_filter.core.http.asked import Passed
    from mcp_tool_filter.core.http.listener import Listener
    from mcp_tool_filter.core.policy.config import Config

type Fields = tuple[tuple[bytes, bytes], ...]
"""The names and values of headers."""

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
    re.IGNORECASE | re.DOTALL,
)
# Names of the request itself: its id, its trace.
_OF_THE_REQUEST = re.compile(
    rb"(?:.*-)?"
    rb"(?:request|correlation|trace|span|transaction|operation|message|invocation|activity|event)"
    rb"-?id|(?:x-)?idempotency-key|x-b3-.*|b3|x-cloud-trace-context|cf-ray"
    rb"|uber-trace-id|sentry-trace|x-datadog-.*|newrelic|elastic-apm-traceparent|grpc-trace-bin"
    rb"|x-request-start|x-(?:timestamp|nonce)",
    re.DOTALL,
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
    """Those that may make a request one of another asker, if their values differ."""


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
        frozenset(name for name in places if not is_harmless(name)),
    )


def is_credential(name: bytes) -> bool:
    """Tell by its name whether a header may identify the asker to an upstream."""
    return _CREDENTIALS.fullmatch(name) is not None


def is_harmless(name: bytes) -> bool:
    """Tell whether an upstream cannot identify the asker by a header of this name."""
    return name in HARMLESS or _OF_THE_REQUEST.fullmatch(name) is not None


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
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
WITHOUT_BODY = frozenset({*SAFE_METHODS, "DELETE"})
"""Methods of requests that carry no message."""
_BASE64_NAME = re.compile(r"=\?base64\?([A-Za-z0-9+/]*={0,2})\?=", re.IGNORECASE)
_LIKE_BASE64 = re.compile(r"=\?base64\?", re.IGNORECASE)
_PLAIN = re.compile(r"(?=[!-~])[ -~]*[!-~]")  # can be a header value as it is
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
MOST_HEADERS = 500
_LONGEST_FORM = 256 * 1024  # bytes
_BLANK = re.compile(r"[\0-\x20\x7f]")
_FORM = re.compile(rb"[A-Za-z0-9%&=+._~*!'(),:/@;$?-]*")


# What a head says of the bytes of its body: it is wrong for other bytes, and the digest of a list
# with hidden tools would show that there are some.
_OF_A_BODY = re.compile(
    rb"etag|content-(?:encoding|range|md5|length)|.*(?:digest|signature|checksum|sha-?(?:1|256|512))"
    rb"(?:-.*)?|x-goog-hash",
    re.IGNORECASE | re.DOTALL,
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
    headers: Fields
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
        if why := problem_in_size(self):
            return f"request too large: {why}", True
        why = problem_in_fields(self)
        return (why, False) if why else None

    def get(self, name: bytes) -> str | None:
        """Return a header's value; ``name`` is written in lower case."""
        place = self.names.places.get(name)
        return None if place is None else self.headers[place][1].decode("latin-1").strip(" \t")

    def all(self, name: bytes) -> list[str]:
        """Return the values of all headers of this name."""
        if name not in self.names.places:
            return []
        return [value.decode("latin-1") for value in values_of(self.headers, name)]

    @property
    def credentials(self) -> frozenset[bytes]:
        """The names of the headers by which an upstream could identify the asker."""
        return self.names.credentials


def values_of(fields: Fields, name: bytes) -> list[bytes]:
    """Return the values of all headers of a name, which is written in lower case."""
    return [value for key, value in fields if key.lower() == name]


def text_of(fields: Fields, name: bytes) -> str:
    """Return the same values joined, which means the same (RFC 9110, section 5.3)."""
    return b", ".join(values_of(fields, name)).decode("latin-1")


@lru_cache(maxsize=256)  # the same few come again and again
def describes_body(name: bytes) -> bool:
    """Tell whether a header of an answer is wrong once the body is another one.

    >>> [describes_body(name) for name in (b"ETag", b"Repr-Digest", b"Signature-Input", b"Date")]
    [True, True, True, False]
    """
    return _OF_A_BODY.fullmatch(name) is not None


def without_body(fields: Fields) -> Fields:
    """Return the fields of an answer that hold for another body, too."""
    return tuple([field for field in fields if not describes_body(field[0])])


def problem_in_size(head: Head) -> str | None:
    """Return the reason to refuse a head longer than any honest one, since each check reads all of
    it."""
    if len(head.target) > URI:
        return f"a URL longer than {URI} bytes"
    if len(head.headers) > MOST_HEADERS:
        return f"more than {MOST_HEADERS} headers"
    length = sum(map(len, chain.from_iterable(head.headers)))
    if length <= URI:
        return None
    if max(map(len, chain.from_iterable(head.headers))) > URI:
        return f"a header longer than {URI} bytes"
    return f"headers longer than {HEAD} bytes" if length > HEAD else None


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
    return UTF_8.issuperset(charsets_in(content_type))


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
    if once.count("&") + once.count(";") >= MANY:
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
    if not _LIKE_BASE64.match(name):
        return name
    match = _BASE64_NAME.fullmatch(name)
    try:
        return base64.b64decode(match[1], validate=True).decode() if match else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _names_in(message: Request | Notification) -> set[str]:
    """Return the allowed values of Mcp-Name; for methods unknown to the specification, several."""
    known = _NAMED.get(message.method)
    keys = (known,) if known else ("name", "uri", "taskId")
    values = [message.params.get(key) for key in keys] if message.params else []
    return {value.text for value in values if value and value.text is not None}


type Changed = tuple[tuple[str, str | None], ...]
"""Headers to set; None removes one."""


def headers_after(head: Head, message: Message, definitions: Mapping[str, bytes]) -> Changed:
    """Return the headers that must change to agree with a rewritten body."""
    method, name = head.get(b"mcp-method"), head.get(b"mcp-name")
    if isinstance(message, Batch) or not isinstance(message, Request | Notification):
        announces = method is not None or name is not None
        return (("mcp-method", None), ("mcp-name", None)) if announces else ()
    changed: list[tuple[str, str | None]] = []
    if method is not None and method != message.method:
        changed.append(("mcp-method", message.method))
    names = _names_in(message)
    if name is not None and _decoded(name) not in names:
        changed.append(("mcp-name", _encoded(min(names)) if names else None))
    return (*changed, *_param_headers_after(head, message, definitions))


def _param_headers_after(
    head: Head, message: Request | Notification, definitions: Mapping[str, bytes]
) -> list[tuple[str, str | None]]:
    """Return the ``Mcp-Param-…`` headers that must change to agree with a rewritten call."""
    tool = message.params.get("name") if message.params else None
    definition = definitions.get(tool.text) if tool and tool.text is not None else None
    if message.method != "tools/call" or definition is None:
        return []
    mapped = param_headers_in(definition)
    sent = {
        key.decode().lower(): value.decode("latin-1")
        for key, value in head.headers
        if key.lower().startswith(b"mcp-param-")
    }
    if revision_in(message) is None:  # it has no such headers: a server might believe one
        ours = {f"mcp-param-{one.lower()}" for one in mapped.values()}
        return [(name, None) for name in sent if name in ours]
    wanted = dict(_param_headers(message, mapped))
    gone: list[tuple[str, str | None]] = [(name, None) for name in sent if name not in wanted]
    return gone + [(name, value) for name, value in wanted.items() if sent.get(name) != value]


def _encoded(text: str) -> str:
    """Encode a text as a header value."""
    if _PLAIN.fullmatch(text) and not _LIKE_BASE64.match(text):
        return text
    payload = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return f"=?base64?{payload}?="


# Headers that repeat parts of the body

type ParamHeaders = Mapping[tuple[str, ...], str]
"""The path of each mirrored argument, and the end of its header's name."""

_TOKEN = re.compile(f"{HTTP_TOKEN}+")
_MIRRORED_TYPES = ("string", "integer", "boolean")
_DEEPEST = 32  # levels of a schema


def revision_in(message: Message) -> str | None:
    """Return the revision that a request states in its body; None before 2026-07-28."""
    if not isinstance(message, Request | Notification) or message.params is None:
        return None
    meta = message.params.get("_meta")
    revision = meta.get(META_REVISION) if meta else None
    return revision.text if revision and revision.text and _TOKEN.fullmatch(revision.text) else None


def mirrored_headers(
    message: Message, tools: Mapping[str, ParamHeaders]
) -> list[tuple[bytes, bytes]]:
    """Return the headers for a message that states its revision; none for others."""
    revision = revision_in(message)
    if revision is None or not isinstance(message, Request | Notification):
        return []
    headers = [("mcp-protocol-version", revision), ("mcp-method", _encoded(message.method))]
    name = message.params.get(_NAMED.get(message.method, "")) if message.params else None
    if name and name.text is not None:
        headers.append(("mcp-name", _encoded(name.text)))
        if message.method == "tools/call" and (wanted := tools.get(name.text)):
            headers += _param_headers(message, wanted)
    return [(key.encode(), value.encode()) for key, value in headers]


def param_headers_in(definition: bytes) -> ParamHeaders:
    """Return the arguments that a tool's definition wants to be mirrored.

    >>> param_headers_in(b'{"inputSchema":{"properties":{"a":{"properties":{"b":'
    ...                  b'{"type":"string","x-mcp-header":"B"}}}}}}')
    {('a', 'b'): 'B'}
    """
    if b"x-mcp-header" not in definition:
        return {}
    try:
        schema = json.loads(definition, parse_int=str)["inputSchema"]
        return dict(_annotated(schema, ()))
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _annotated(schema: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or len(path) > _DEEPEST:
        return
    for name, inner in properties.items():
        if not isinstance(inner, dict):
            continue
        header = inner.get("x-mcp-header")
        typed = inner.get("type") in _MIRRORED_TYPES
        if isinstance(header, str) and typed and _TOKEN.fullmatch(header):
            yield (*path, name), header
        yield from _annotated(inner, (*path, name))


def _param_headers(message: Request | Notification, wanted: ParamHeaders) -> list[tuple[str, str]]:
    assert message.params
    arguments = message.params.get("arguments")
    if arguments is None:
        return []
    # Keep numbers as they are written.
    read = json.loads(message.place.cut(arguments), parse_int=str, parse_float=str)
    values = ((token, _at(read, path)) for path, token in wanted.items())
    return [
        (f"mcp-param-{token.lower()}", _encoded(text))
        for token, value in values
        if (text := _scalar(value)) is not None
    ]


def _at(value: object, path: tuple[str, ...]) -> object:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _scalar(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else None


# They are about one connection: we drop them in both directions.
_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"content-length", b"upgrade", b"http2-settings",
})  # fmt: skip
NOT_SENT = frozenset({
    *_HOP_BY_HOP, b"host", b"accept-encoding", b"proxy-authorization", b"range", b"if-range",
    b"expect", b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions",
})  # fmt: skip
"""Headers of a client that no upstream gets, with any message."""
_NOT_ANSWERED = frozenset({*_HOP_BY_HOP, b"alt-svc", b"sec-websocket-extensions"})
_CONTROL = re.compile(rb"[\r\n\0]")
_SCHEMA = b"inputschema"  # every tool has one


@dataclass(slots=True, eq=False)
class RequestNotes:
    """What was decided on a request's head; all heads that are equal share it."""

    config: Config | None = None
    """The configuration under which this was decided; None if nothing was."""
    problem: str | None = None
    """Why the gate refuses the request, or None."""
    head: Head | None = None
    """The head as the core reads it."""
    out_fields: Fields | None = None
    """The fields that the upstream gets, if it gets the client's own body."""
    out_head: bytes = b""
    """The same, written, with the request line."""
    routed: tuple[object, Any, str, RequestNotes] | None = None
    """Where it goes if there are several upstreams: the table that says so, the service there, the
    target there, and the notes on the head with that target."""


@dataclass(slots=True, eq=False)
class AnswerNotes:
    """What was decided on an answer's head; remembered with it."""

    names: UpstreamNames | None = None
    """The names of the upstream by which the fields were judged; None if they were not yet."""
    fields: Fields = ()
    """The fields that may pass."""
    date_at: int | None = None
    """The place of Date among them."""
    stays: bool = True
    """False for a redirect that leads away from us."""
    reason: bytes = b""
    kind: str = ""
    """The content type."""
    coding: str = ""
    session: str | None = None
    challenges: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    written: tuple[Fields, bytes] | None = None
    """Fields, and the head that was written of them for a client."""

    def judge(self, status: int, reason: bytes, fields: Fields, listener: Listener) -> None:
        """Judge an answer's head. Raises ProtocolError if it must not pass."""
        values = b"".join([value for _, value in fields])
        if len(fields) > MOST_HEADERS or any(len(value) > URI for _, value in fields):
            raise ProtocolError("a header that is too long, or too many of them")
        if _CONTROL.search(values):
            raise ProtocolError("a control character in a header")
        kept = [field for field in fields if field[0].lower() not in _NOT_ANSWERED]
        if _SCHEMA in values.lower():
            kept = [one for one in kept if _SCHEMA not in one[1].lower()]
        self.stays = True
        if not listener.is_forward and links_in(kept):
            kept = keep_links(kept, listener.names)
            self.stays = not (300 <= status < 400 and leads_away(kept))
        if listener.mount.prefix:
            kept = listener.mount.fields(kept)
        places = [at for at, (name, _) in enumerate(kept) if name.lower() == b"date"]
        self.fields, self.date_at = tuple(kept), places[0] if len(places) == 1 else None
        self.reason = b"" if _SCHEMA in reason.lower() else reason
        self.kind = text_of(fields, b"content-type")
        self.coding = text_of(fields, b"content-encoding")
        self.session = text_of(fields, b"mcp-session-id") or None
        self.challenges = tuple(_texts(fields, b"www-authenticate"))
        self.locations = tuple(_texts(fields, b"location"))
        self.names = listener.names


def fields_for_upstream(head: Head, passed: Passed, *, host: bytes, added: Fields) -> Fields:
    """Return the fields that the upstream gets: the client's, as far as they may pass, and ours."""
    gone = {*NOT_SENT, *(name.lower() for name, _ in added)}
    gone.update(name.encode() for name, _ in passed.headers)
    if passed.body is not None:
        gone.add(b"content-encoding")
    out = [(b"host", host)]
    out += [header for header in head.headers if header[0].lower() not in gone]
    out.append((b"accept-encoding", b"identity"))
    out += [(name.encode(), value.encode()) for name, value in passed.headers if value is not None]
    return (*out, *added)


def links_in(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Return the fields that hold URLs."""
    return tuple([field for field in fields if field[0].lower() in WITH_URLS])


def _texts(fields: Fields, name: bytes) -> list[str]:
    return [value.decode("latin-1") for value in values_of(fields, name)]
