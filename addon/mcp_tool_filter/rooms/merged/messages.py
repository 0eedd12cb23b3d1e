r"""The bytes of messages between a client and several servers: only names, ids and tokens change.

A client's ids pass as they are. What a server asks gets an id with the server's name, because two
servers may use the same one; the client's answer gets the server's own bytes again:

>>> own_request = b'{"jsonrpc":"2.0","id":7,"method":"roots/list"}'
>>> asked = for_client("files", own_request)
>>> asked.raw
b'{"jsonrpc":"2.0","id":"files:7","method":"roots/list"}'
>>> with_id(b'{"id":"files:7","jsonrpc":"2.0","result":{}}', asked.own_id)
b'{"id":7,"jsonrpc":"2.0","result":{}}'
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mcp_tool_filter import __version__
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import (
    NEWEST_WITH_INITIALIZE,
    REVISION_KEY,
    SESSION_REVISIONS,
    STATELESS_REVISIONS,
    Limits,
)
from mcp_tool_filter.core.messages.messages import Request, quote_harmlessly
from mcp_tool_filter.core.messages.scan import Outline, Value, open_value, scan
from mcp_tool_filter.core.messages.tools import Edit, removed, with_edits
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.rooms.merged.lists import ListKind

INVALID_PARAMS: Final = -32602
_RESOURCE_NOT_FOUND: Final = -32002  # before 2026-07-28
LONGEST_TTL: Final = 60_000
KNOWN_EXTENSIONS: Final = frozenset(
    {"io.modelcontextprotocol/ui", "io.modelcontextprotocol/skills"}
)
"""Extensions that work unchanged, because they only use tools and URIs."""
META: Final = "io.modelcontextprotocol/"
SUBSCRIPTION: Final = f"{META}subscriptionId"
_ANY_SIZE = Limits(message=2**40, depth=200)
_PARTS: Outline = {"params": {"_meta": {}}}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Asked(NamedTuple):
    """A server's request as the client gets it."""

    raw: bytes
    id: str
    """What the client gets, as it is written."""
    own_id: str
    token: tuple[str, str] | None
    """The progress token that the client gets, and the server's own."""


def id_for_client(server: str, own: str) -> str:
    r"""Return the id that a client gets.

    >>> id_for_client("files", "7"), id_for_client("files", '"7"')
    ('"files:7"', '"files:\\"7\\""')
    """
    return quoted(f"{server}:{own}")


def for_client(server: str, raw: bytes) -> Asked:
    """Return a server's request with an id, and a progress token, that no other server uses."""
    text, root = scan(raw, _PARTS, _ANY_SIZE)
    id = root["id"]
    own = text[id.start : id.end]
    edits = [Edit(id.start, id.end, id_for_client(server, own))]
    token = None
    if (value := _inner(root, "params", "_meta", "progressToken")) is not None:
        own_token = text[value.start : value.end]
        token = id_for_client(server, own_token), own_token
        edits.append(Edit(value.start, value.end, token[0]))
    return Asked(_edited(text, root, edits), edits[0].text, own, token)


def with_id(raw: bytes, id: str) -> bytes:
    """Return a message with another id."""
    return with_value(raw, id, "id")


def with_value(raw: bytes, new: str, *path: str) -> bytes:
    """Return a message with another value, as it is written, in a place that it has."""
    text, root = scan(raw, _PARTS, _ANY_SIZE)
    value = _inner(root, *path)
    assert value is not None
    return _edited(text, root, [Edit(value.start, value.end, new)])


def written_at(raw: bytes, *path: str) -> str | None:
    """Return a part of a message as it is written."""
    text, root = scan(raw, _PARTS, _ANY_SIZE)
    value = _inner(root, *path)
    return None if value is None else text[value.start : value.end]


def _inner(root: Value, *path: str) -> Value | None:
    found: Value | None = root
    for key in path:
        found = found.get(key) if found is not None else None
    return found


def _edited(text: str, root: Value, edits: Iterable[Edit]) -> bytes:
    return with_edits(text, root.start, root.end, edits).encode()


# Requests of the client


def text_at(message: Request, *path: str) -> str | None:
    """Return a text in the params of a request."""
    value = value_at(message, *path)
    return value.text if value is not None else None


def value_at(message: Request, *path: str) -> Value | None:
    value = message.params
    for key in path:
        value = open_value(message.place.text, value).get(key) if value is not None else None
    return value


def with_params(message: Request, *changes: tuple[Value, str]) -> bytes:
    """Return a request with other values, as they are written."""
    place = message.place
    edits = [Edit(value.start, value.end, new) for value, new in changes]
    return with_edits(place.text, place.start, place.end, edits).encode()


def stateless(raw: bytes, meta: Mapping[str, str], more: Mapping[str, str]) -> bytes:
    """Return a request as 2026-07-28 has it: with these members of ``_meta``, and of ``params``.

    >>> stateless(b'{"id":1,"params":{"_meta":{"a":1}}}', {"b": "2"}, {"c": "3"})
    b'{"id":1,"params":{"c":3,"_meta":{"b":2,"a":1}}}'
    >>> stateless(b'{"id":1}', {"b": "2"}, {})
    b'{"params":{"_meta":{"b":2}},"id":1}'
    """
    text, root = scan(raw, _PARTS, _ANY_SIZE)
    params, inside = root.get("params"), _inner(root, "params", "_meta")
    if params is None:
        added = f'"params":{_object({**more, "_meta": _object(meta)})}'
        return _edited(text, root, [_first(root, added)])
    edits = [_first(params, _members(more))] if more else []
    if inside is None and meta:
        edits = [_first(params, _members({**more, "_meta": _object(meta)}))]
    elif inside is not None and meta:
        edits.append(_first(inside, _members(meta)))
    return _edited(text, root, edits)


def _first(holder: Value, members: str) -> Edit:
    """Return the edit that puts members before those of an object."""
    at = holder.start + 1
    return Edit(at, at, members + ("," if holder.members else ""))


def _members(named: Mapping[str, str]) -> str:
    return ",".join(f"{quoted(name)}:{value}" for name, value in named.items())


def _object(named: Mapping[str, str]) -> str:
    return f"{{{_members(named)}}}"


def client_capabilities(written: str) -> str:
    """Return what the servers are told that the client can: no tasks, no unknown extensions.

    >>> client_capabilities('{"roots":{}, "tasks":{}, "extensions":{"x/y":{}}}')
    '{"roots":{}, "extensions":{}}'
    """
    text, root = scan(written.encode(), {"extensions": {}}, _ANY_SIZE)
    gone = [one for one in root.members or () if one.key == "tasks"]
    edits = [*removed(root, gone)] if gone else []
    if (extensions := root.get("extensions")) is not None:
        members = extensions.members or ()
        unknown = [one for one in members if one.key not in KNOWN_EXTENSIONS]
        edits += removed(extensions, unknown) if unknown else ()
    return with_edits(text, root.start, root.end, edits)


# Our own answers


def render_result(id: str, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id.encode(), result)


def render_list(id: str, kind: ListKind, body: bytes, ttl: int | None) -> bytes:
    """Return a merged list; with a ``ttl`` in the form of 2026-07-28."""
    more = b""
    if ttl is not None:
        more = b',"resultType":"complete","ttlMs":%d,"cacheScope":"private"' % ttl
    parts = (
        b'{"jsonrpc":"2.0","id":', id.encode(), b',"result":{"', kind.member.encode(), b'":[',
        body, b"]", more, b"}}",
    )  # fmt: skip
    return b"".join(parts)


def unknown_thing(id: str, method: str, name: str, *, is_stateless: bool) -> bytes:
    """Return the revision's error for a prompt or resource that does not exist."""
    code, said, data = INVALID_PARAMS, f"Unknown prompt: {shown(name)}", ""
    if not method.startswith("prompts/"):
        code = INVALID_PARAMS if is_stateless else _RESOURCE_NOT_FOUND
        said, data = "Resource not found", f',"data":{{"uri":{quote_harmlessly(name)}}}'
    error = f'{{"code":{code},"message":{quote_harmlessly(said)}{data}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


type Offered = Mapping[str, Any]
"""The capabilities of a server, as it has declared them."""


def offered_by_all(servers: Iterable[Offered]) -> dict[str, Any]:
    """Return the capabilities of all servers together; tasks are not offered.

    >>> offered_by_all([{"tools": {}, "tasks": {}}, {"resources": {"subscribe": True}}])
    {'tools': {'listChanged': True}, 'resources': {'listChanged': True, 'subscribe': True}}
    """
    union: dict[str, Any] = {"tools": {"listChanged": True}}
    for offered in servers:
        for name, said in offered.items():
            known = union.setdefault(name, {}) if isinstance(said, dict) else {}
            if name in ("tools", "prompts", "resources"):
                known["listChanged"] = True
                if isinstance(said, dict) and said.get("subscribe") is True:
                    known["subscribe"] = True
            elif name == "extensions" and isinstance(said, dict):
                known |= {key: one for key, one in said.items() if key in KNOWN_EXTENSIONS}
            elif isinstance(said, dict):
                known |= said
    return {name: said for name, said in union.items() if name != "tasks" and _counts(name, said)}


def _counts(name: str, said: object) -> bool:
    return bool(said) or name not in ("extensions", "experimental")


def instructions_of(prefixes: Mapping[str, str], said: Mapping[str, str]) -> str:
    """Return the instructions: how names begin, then what each server says of itself.

    >>> print(instructions_of({"files": "fs_", "web": "web_"}, {"web": "Be brief."}))
    The name of each tool and prompt begins with its server's prefix: fs_ (files), web_ (web).
    <BLANKLINE>
    web: Be brief.
    """
    listed = ", ".join(f"{prefix or 'none'} ({name})" for name, prefix in prefixes.items())
    first = f"The name of each tool and prompt begins with its server's prefix: {listed}."
    return "\n\n".join([first, *(f"{name}: {text}" for name, text in said.items())])


def render_introduction(
    revision: str, capabilities: Mapping[str, Any], instructions: str, *, title: str
) -> bytes:
    """Return the result of ``initialize``, or of ``server/discover``."""
    info = {"name": "mcp-tool-filter", "title": title, "version": __version__}
    said: dict[str, Any] = {"capabilities": capabilities, "instructions": instructions}
    if revision in STATELESS_REVISIONS:
        said |= {
            "supportedVersions": [*SESSION_REVISIONS, *STATELESS_REVISIONS],
            "resultType": "complete",
        }
        said |= {"ttlMs": 0, "cacheScope": "private", "_meta": {f"{META}serverInfo": info}}
    else:
        said = {REVISION_KEY: revision, **said, "serverInfo": info}
    return json.dumps(said, ensure_ascii=False).encode()


def agreed_revision(asked: str | None) -> str:
    """Return the revision of a session whose client asks for one."""
    return asked if asked in SESSION_REVISIONS else NEWEST_WITH_INITIALIZE


# A stateless server's questions


class Questions(NamedTuple):
    """What a result asks of the client before the request can be completed."""

    requests: Mapping[str, str]
    """By the server's keys; each as it is written."""
    state: str | None


def questions_in(result: bytes) -> Questions | None:
    """Return what an answer of a stateless server asks; None if it is complete."""
    if b"input_required" not in result:
        return None
    text, root = scan(result, {"result": {"inputRequests": {}}}, _ANY_SIZE)
    said = root.get("result")
    kind = said.get("resultType") if said else None
    if said is None or kind is None or kind.text != "input_required":
        return None
    asked = said.get("inputRequests")
    requests = {
        one.key: text[one.value.start : one.value.end] for one in (asked and asked.members) or ()
    }
    if any(not written.startswith("{") for written in requests.values()):
        raise ProtocolError("an input request that is no object")
    state = said.get("requestState")
    return Questions(requests, text[state.start : state.end] if state else None)


def render_question(id: str, request: str) -> bytes:
    """Return an input request as a request of a session."""
    joint = "," if request[1:].strip() != "}" else ""
    return f'{{"jsonrpc":"2.0","id":{id}{joint}{request[1:].lstrip()}'.encode()


def answers_to(questions: Questions, results: Mapping[str, str]) -> dict[str, str]:
    """Return the members of ``params`` for the retry."""
    more = {"inputResponses": _object(results)} if results else {}
    return more | ({"requestState": questions.state} if questions.state else {})


def listening(subscriptions: Sequence[str]) -> str:
    """Return what a session's client wants to hear from a stateless server."""
    wanted: dict[str, Any] = dict.fromkeys(
        ("toolsListChanged", "promptsListChanged", "resourcesListChanged"), True
    )
    if subscriptions:
        wanted["resourceSubscriptions"] = list(subscriptions)
    return json.dumps(wanted, ensure_ascii=False)
