r"""Headers that repeat parts of a request's body, since revision 2026-07-28.

``Mcp-Method`` and ``Mcp-Name`` repeat the method and the name in its params; a tool's schema can
require arguments to be mirrored as ``Mcp-Param-…`` (``x-mcp-header``). A stdio client sends none of
these, so we add them when we forward its messages over HTTP.

>>> from mcp_tool_filter.protocol.messages import parse_message
>>> call = parse_message(
...     b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gr\\u00fc\\u00df",'
...     b'"arguments":{"region":"eu"},'
...     b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}'
... )
>>> for name, value in mirrored_headers(call, {"grüß": {("region",): "Region"}}):
...     print(name.decode(), value.decode())
mcp-protocol-version 2026-07-28
mcp-method tools/call
mcp-name =?base64?Z3LDvMOf?=
mcp-param-region eu
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping

from mcp_tool_filter.protocol.messages import Message, Notification, Request

type ParamHeaders = Mapping[tuple[str, ...], str]
"""The path of each mirrored argument, and the end of its header's name."""

_REVISION = "io.modelcontextprotocol/protocolVersion"
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN = re.compile(r"(?=[!-~])[ -~]*[!-~]")  # can be a header value as it is
_LIKE_ENCODED = re.compile(r"=\?base64\?.*\?=", re.IGNORECASE)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MIRRORED_TYPES = ("string", "integer", "boolean")
_DEEPEST = 32  # levels of a schema


def revision_in(message: Message) -> str | None:
    """Return the revision that a request states in its body; None before 2026-07-28."""
    if not isinstance(message, Request | Notification) or message.params is None:
        return None
    meta = message.params.get("_meta")
    revision = meta.get(_REVISION) if meta else None
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


def param_headers_after(
    sent: Mapping[str, str], message: Message, definitions: Mapping[str, bytes]
) -> list[tuple[str, str | None]]:
    """Return the ``Mcp-Param-…`` headers that must change to agree with a rewritten call.

    ``sent`` are those that the client sent; None removes one.
    """
    if revision_in(message) is None or not isinstance(message, Request | Notification):
        return []
    tool = message.params.get("name") if message.params else None
    definition = definitions.get(tool.text) if tool and tool.text is not None else None
    if message.method != "tools/call" or definition is None:
        return []
    wanted = dict(_param_headers(message, param_headers_in(definition)))
    gone: list[tuple[str, str | None]] = [(name, None) for name in sent if name not in wanted]
    return gone + [(name, value) for name, value in wanted.items() if sent.get(name) != value]


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


def _encoded(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _LIKE_ENCODED.fullmatch(text):
        return text
    payload = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return f"=?base64?{payload}?="
