"""What must hold of all that leaves us, whatever came in; as others would read it.

A function here takes the bytes that left, and raises ``Violation`` if some reader finds in them
what the filter promises to keep back.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, urljoin, urlsplit

import orjson

from tests.fuzz.readers import Json, event_readings, json_readings, text_readings

_CONTENT = ("content", "structuredcontent", "contents", "messages", "inputrequests")
_SAMPLING = "sampling/createMessage"
_PLAIN_KEYS = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_WORDS_OF_TOOLS = re.compile(r"tools|schema|endpoint|jsonrpc.*jsonrpc|call", re.I | re.S)


class Violation(AssertionError):
    """A promise is broken."""


def require(holds: bool, promise: str, *evidence: object) -> None:
    if not holds:
        raise Violation(promise, *evidence)


# Toward the upstream


def no_call_but_of(allowed: Mapping[str, bytes], body: bytes, content_type: str = "") -> None:
    """Every reader of the body finds only calls of allowed tools."""
    for value in json_readings(body, content_type):
        for name in _calls_in(value):
            require(name in allowed, "a call that is not allowed", name, body)


def no_call_in_head(
    allowed: Mapping[str, bytes], target: str, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    """Nor in the query, nor in headers that repeat the body."""
    query = parse_qsl(urlsplit(target).query, keep_blank_values=True)
    for key, value in query:
        require(not (key.lower() == "method" and _is_call(value)), "a call in the URL", target)
    said = {name.lower().replace(b"_", b"-"): value.decode("latin-1") for name, value in headers}
    if _is_call(said.get(b"mcp-method", "")) and b"mcp-name" in said:
        name = _undisguised(said[b"mcp-name"].strip(" \t"))
        require(name in allowed, "a call in the headers", headers)


def _undisguised(name: str) -> str:
    inner = re.fullmatch(r"=\?base64\?(.*)\?=", name, re.IGNORECASE)
    try:
        return base64.b64decode(inner[1]).decode() if inner else name
    except ValueError:
        return name


def _calls_in(value: Json) -> Iterator[str]:
    for message in _objects(value):
        params = message.get("params")
        if _is_call(message.get("method")) and isinstance(params, dict):
            name = params.get("name")
            if isinstance(name, str):
                yield name


def _is_call(method: object) -> bool:
    return isinstance(method, str) and method.split("\0")[0].strip().lower() == "tools/call"


def _objects(value: Json) -> list[dict[str, Json]]:
    """Return the messages of a body: one, or a batch."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


# Toward the client


def no_tool_but_of(
    allowed: Mapping[str, bytes], denied: str, body: bytes, content_type: str = "", *, is_list: bool
) -> None:
    """Every reader of the body finds no denied tool; in a list, only the snapshot's tools."""
    for value in json_readings(body, content_type):
        _no_tool_in(value, allowed, denied, is_list=is_list)


def no_tool_in_stream(
    allowed: Mapping[str, bytes], denied: str, stream: bytes, *, is_list: bool
) -> None:
    for number, events in enumerate(event_readings(stream)):
        for name, data in events:
            is_message = name == "message"
            for value in text_readings(data, strict=number > 0):
                _no_tool_in(value, allowed, denied, is_list=is_list and is_message)


def no_endpoint_but_ours(stream: bytes) -> None:
    """An endpoint that a client is sent to is here."""
    for events in event_readings(stream):
        for name, data in events:
            if name != "endpoint":
                continue
            for url in (data.strip(), _as_browsers_do(data)):
                place = urlsplit(urljoin("http://us.test/sse", url))
                require(place.netloc == "us.test", "an endpoint elsewhere", data)


def _as_browsers_do(url: str) -> str:
    """Read slashes as generously as the WHATWG's basic URL parser."""
    plain = re.sub(r"[\t\r\n]", "", url.strip("".join(map(chr, range(33))))).replace("\\", "/")
    return re.sub(r"(?i)^(https?:|wss?:)?/{2,}", r"\1//", plain)


def _no_tool_in(value: Json, allowed: Mapping[str, bytes], denied: str, *, is_list: bool) -> None:
    for message in _objects(value):
        if message.get("method") == _SAMPLING:
            continue
        if is_list:
            for tool in _listed_in(message):
                require(_is_of(tool, allowed), "a tool that is not the snapshot's", tool)
        for name in _names_shown(_without_content(message)):
            require(name != denied, "a denied tool is shown", message)


def _listed_in(message: dict[str, Json]) -> Iterator[Json]:
    """Yield what a client that asked for a list takes for tools."""
    result = message.get("result")
    tools = result.get("tools") if isinstance(result, dict) else None
    if isinstance(tools, list):
        yield from tools


def _is_of(tool: Json, allowed: Mapping[str, bytes]) -> bool:
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or name not in allowed:
        return False
    return tool in list(json_readings(allowed[name]))


def _without_content(message: dict[str, Json]) -> Json:
    result = message.get("result")
    if not isinstance(result, dict):
        return message
    bare = {key: value for key, value in result.items() if key.lower() not in _CONTENT}
    return {**message, "result": bare}


def _names_shown(value: Json, key: str = "", is_tool: bool = False) -> Iterator[str]:
    """Yield the names of all that looks like a definition, at whatever depth."""
    if isinstance(value, list):
        for one in value:
            yield from _names_shown(one, key, key == "tools")
    elif isinstance(value, dict):
        schema = value.get("inputSchema", value.get("inputschema"))
        if is_tool or isinstance(schema, dict):
            name = value.get("name")
            if isinstance(name, str):
                yield name
        for inner, one in value.items():
            yield from _names_shown(one, inner)


# What is honest


def is_honest(raw: bytes) -> bool:
    """Tell whether no reader could see anything in a message but what all others see in it.

    What speaks of tools is left out: for that the filter has other rules than to let it pass.
    """
    try:
        text = raw.decode("ascii")
        value = orjson.loads(raw)
        json.loads(text, object_pairs_hook=_refuse_repeated)
    except ValueError:
        return False
    if not isinstance(value, dict) or not value.keys() <= _PLAIN_KEYS or "\\u" in text:
        return False
    if _WORDS_OF_TOOLS.search(text) or text.count("{") + text.count("[") > 100:
        return False
    if value.get("jsonrpc") != "2.0" or type(value.get("id", 1)) not in (int, str):
        return False
    return _is_request(value) or _is_response(value)


def is_honest_stream(raw: bytes) -> bool:
    """Tell whether a stream is of honest messages, in events as most write them."""
    events = re.split(rb"\n\n", raw)
    return events.pop() == b"" and all(
        (inner := re.fullmatch(rb"(?:event: message\n)?(?:id: \w+\n)?data: ([^\r\n]+)", one))
        and is_honest(inner[1])
        for one in events
    )


def _refuse_repeated(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _is_request(value: dict[str, Json]) -> bool:
    method, params = value.get("method"), value.get("params", {})
    is_plain = isinstance(method, str) and isinstance(params, dict)
    return is_plain and value.keys() <= {"jsonrpc", "id", "method", "params"}


def _is_response(value: dict[str, Json]) -> bool:
    return value.keys() == {"jsonrpc", "id", "result"} and isinstance(value["result"], dict)
