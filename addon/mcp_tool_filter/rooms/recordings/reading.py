r"""Render messages for people, without the JSON around them.

>>> print(render_body(b'{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"read_file",'
...                   b'"arguments":{"path":"/a","lines":[1,2]}}}', "application/json"))
request tools/call
  id: 4
  tool: read_file
  arguments:
    path: /a
    lines: [1, 2]

This reads leniently and only for display; the filter does not use it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from mcp_tool_filter.core.http.bodies import is_event_stream, kind_of, may_be_event_stream
from mcp_tool_filter.core.messages.sse import Event, EventParser, Oversized, parse_event
from mcp_tool_filter.core.policy.choice import claims_in

_MOST_TOOLS = 500
_WIDTH = 100

type JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | float | bool | None


class NotReadable(ValueError):
    """The body contains no message."""


def render_body(body: bytes, content_type: str) -> str:
    """Render the messages in a body. Raises NotReadable if there are none."""
    if may_be_event_stream(content_type):
        return "\n\n".join("\n".join(_event_lines(n, one)) for n, one in _events_in(body))
    return "\n".join(_message_lines(_parse(body)))


def holds_message(body: bytes, content_type: str) -> bool:
    """Tell quickly whether ``render_body`` would probably work."""
    kind = kind_of(content_type)
    if is_event_stream(kind):
        return True
    return kind in ("application/json", "") and b'"jsonrpc"' in body


def tools_in(body: bytes, content_type: str) -> list[str]:
    """Return the names of all tools listed in a body."""
    if may_be_event_stream(content_type):
        bodies = [one.data or b"" for _, one in _events_in(body) if isinstance(one, Event)]
    else:
        bodies = [body]
    names: list[str] = []
    for one in bodies:
        with suppress(NotReadable):
            message = _parse(one)
            for single in message if isinstance(message, list) else [message]:
                match single:
                    case {"result": {"tools": [*tools]}}:
                        found = [tool for tool in tools if isinstance(tool, dict)]
                        names += (str(tool.get("name")) for tool in found)
    return names


def _events_in(body: bytes) -> Iterator[tuple[int, Event | Oversized]]:
    parser = EventParser()
    events = parser.feed(body)
    rest = parser.finish()
    found = [*events, *([parse_event(rest)] if rest else [])]
    # The rest of a split line end gives an event without content.
    seen = [one for one in found if isinstance(one, Oversized) or one.raw.strip()]
    yield from enumerate(seen, 1)


def _event_lines(number: int, event: Event | Oversized) -> Iterator[str]:
    if isinstance(event, Oversized):
        yield f"event {number}: too long to be shown"
        return
    data = event.data
    if data is None or not data.strip():
        said = "empty" if data is not None else event.raw.decode("utf-8", "replace").strip()
        yield f"event {number}: {said}"
        return
    name = event.name.decode("utf-8", "replace") if event.name else ""
    yield f"event {number}" + (f": {name}" if name else "")
    try:
        lines = list(_message_lines(_parse(data)))
    except NotReadable:
        lines = [_scalar(data.decode("utf-8", "replace"))]
    yield from _indented(lines)


def _parse(body: bytes) -> JsonValue:
    try:
        parsed: JsonValue = json.loads(
            body, parse_int=_Number, parse_float=_Number, object_pairs_hook=_object
        )
    except (ValueError, RecursionError):
        raise NotReadable("no JSON") from None
    return parsed


class _Ambiguous(dict[str, JsonValue]):
    """An object with the same key twice."""

    __slots__ = ()


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Ambiguous(found)


class _Number(str):
    """A number as it was written: 1.0 stays 1.0."""

    __slots__ = ()


def _message_lines(message: JsonValue) -> Iterator[str]:
    if isinstance(message, list):
        yield f"batch of {len(message)}"
        for one in message:
            yield from (f"  {line}" for line in _message_lines(one))
        return
    if not isinstance(message, dict) or "jsonrpc" not in message:
        raise NotReadable("no JSON-RPC message")
    yield from _single_lines(message)


def _single_lines(message: Mapping[str, JsonValue]) -> Iterator[str]:
    id = message.get("id")
    shown_id = [f"  id: {_scalar(id)}"] if "id" in message else []
    params = message.get("params")
    match message:
        case {"method": str(method)}:
            yield f"{'request' if 'id' in message else 'notification'} {method}"
            yield from shown_id
            if method == "tools/call" and isinstance(params, dict):
                params = {"tool" if key == "name" else key: value for key, value in params.items()}
            yield from _indented(_value_lines(params))
        case {"error": {"code": code, "message": text}}:
            yield "error"
            yield from shown_id
            yield f"  code: {_scalar(code)}"
            yield f"  message: {_scalar(text)}"
            match message:
                case {"error": {"data": more}} if more is not None:
                    yield from _indented(_member_lines("data", more))
        case {"result": result}:
            yield "response"
            yield from shown_id
            yield from _indented(_result_lines(result))
        case _:
            yield from _value_lines(dict(message))


def _result_lines(result: JsonValue) -> Iterator[str]:
    if not isinstance(result, dict):
        yield from _value_lines(result)
        return
    rest = dict(result)
    tools = rest.pop("tools", None)
    if isinstance(tools, list):
        yield f"tools: {len(tools)}"
        for tool in tools[:_MOST_TOOLS]:
            yield f"  {_tool_line(tool)}"
    elif tools is not None:
        rest["tools"] = tools
    yield from _value_lines(rest)


def _tool_line(tool: JsonValue) -> str:
    if not isinstance(tool, dict):
        return _scalar(tool)
    schema = tool.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    required, properties = schema.get("required"), schema.get("properties")
    needed = required if isinstance(required, list) else []
    names = [
        name if name in needed else f"{name}?"
        for name in (properties if isinstance(properties, dict) else {})
    ]
    line = f"- {tool.get('name')}({', '.join(names)})"
    if marks := _marks_of(tool):
        line += f" [{marks}]"
    about = str(tool.get("description") or "").split("\n")[0].strip()
    if about and len(line) < _WIDTH - 10:
        room = _WIDTH - len(line)
        line += f": {about}" if len(about) <= room else f": {about[:room]}…"
    return line


def _marks_of(tool: dict[str, JsonValue]) -> str:
    """Return what a definition says clearly of its tool."""
    hints = tool.get("annotations")
    if isinstance(tool, _Ambiguous) or isinstance(hints, _Ambiguous):
        return ""
    said = dict.fromkeys(tool) | {"annotations": hints}  # other keys may be much like it
    return claims_in(json.dumps(said).encode()).marks


def _value_lines(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _member_lines(key, part)
    elif isinstance(value, list):
        for part in value:
            first, *more = list(_value_lines(part)) or ["{}" if part == {} else "[]"]
            yield f"- {first}"
            yield from (f"  {line}" for line in more)
    elif value is not None:
        yield from _text_lines(value)


def _member_lines(key: str, value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        if (short := _short(value)) is not None:
            yield f"{key}: {short}"
            return
        yield f"{key}:"
        yield from _indented(_value_lines(value))
    elif isinstance(value, str) and not isinstance(value, _Number) and "\n" in value.strip("\n"):
        yield f"{key}: |"
        yield from _indented(value.rstrip("\n").split("\n"))
    else:
        yield f"{key}: {'{}' if value == {} else '[]' if value == [] else _scalar(value)}"


def _short(value: dict[str, JsonValue] | list[JsonValue]) -> str | None:
    """Render a short list of plain values on one line."""
    if isinstance(value, dict) or any(isinstance(part, dict | list) for part in value):
        return None
    line = f"[{', '.join(map(_scalar, value))}]"
    return line if len(line) <= _WIDTH - 20 else None


def _text_lines(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str) and not isinstance(value, _Number) and "\n" in value:
        yield from value.split("\n")
    else:
        yield _scalar(value)


def _scalar(value: JsonValue) -> str:
    """Render a plain value; text is quoted if it could be taken for something else.

    >>> [_scalar(value) for value in ("read_file", "7", "a: b", None, True)]
    ['read_file', '"7"', '"a: b"', 'null', 'true']
    """
    if isinstance(value, _Number):
        return str(value)
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    is_plain = value[:1].isalpha() or value[:1] in ("/", "_", ".")
    odd = value in ("null", "true", "false") or ": " in value or " #" in value
    if is_plain and not odd and value.isprintable() and not value.endswith((":", " ")):
        return value
    return json.dumps(value, ensure_ascii=False)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}" if line else ""
