"""Messages within other messages.

Since revision 2026-07-28 the server's requests are in ``inputRequests`` of a result, the client's
answers in ``inputResponses`` of its next request, and ``subscriptions/listen`` names resources as
``resources/subscribe`` did. Rules see each of them as what it is, as if it was sent alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    Batch,
    Notification,
    Place,
    Request,
    Response,
    Single,
    parse_message,
)
from mcp_tool_filter.core.messages.scan import Value
from mcp_tool_filter.rooms.catalog.uris import is_of_skill
from mcp_tool_filter.rooms.rules.fields import Document, Unjudgeable, quote


def shows_skill(message: Response, request: Request | None) -> bool:
    """Tell whether an answer has a file of a skill: its digest is in the skill's manifest, so that
    clients would take a changed file for a forged one."""
    if message.result is None or request is None or request.method != "resources/read":
        return False
    asked = request.params.get("uri") if request.params else None
    document, uris = Document(message.place.text), [asked.text if asked else None]
    contents = _member(document, message.result, "contents")
    for content in (contents and contents.elements) or ():
        uri = document.open(content).get("uri")
        uris.append(uri.text if uri else None)
    return any(uri is not None and is_of_skill(uri) for uri in uris)


ASKING = ("sampling/createMessage", "elicitation/create", "roots/list")
"""The requests that a result may carry."""


SUBSCRIBE = "resources/subscribe"


LISTEN = "subscriptions/listen"


_REQUESTS, _RESPONSES = "inputRequests", "inputResponses"


_COULD_CARRY = {
    name: re.compile(rf"{name}|\\u|[^\0-\x7f]", re.IGNORECASE) for name in (_REQUESTS, _RESPONSES)
}


@dataclass(frozen=True, slots=True)
class Carried:
    """A carried message, and the part of the carrier's text that a change of it replaces."""

    message: Request | Response
    key: str
    """What pairs a request with its answer; empty if it has none."""
    start: int
    end: int
    before: str = ""
    """What to write before a part that is not there yet."""

    def changed_part(self, message: Single) -> str:
        """Return the changed part, as the carrier has it."""
        place = message.place
        if isinstance(message, Response):
            return place.cut(message.result) if message.result else "null"
        params = message.params
        if message.method == SUBSCRIBE:
            uri = params.get("uri") if params else None
            return place.cut(uri) if uri else "null"
        return self.before + place.cut(params) if params else self.before + "{}"


def carried_requests(message: Response, limits: Limits) -> list[Carried]:
    """Return the requests in a result. Raises ProtocolError if they cannot be judged."""
    if message.result is None or not _COULD_CARRY[_REQUESTS].search(message.place.text):
        return []
    document, found = Document(message.place.text), []
    for key, entry in _entries(document, message.result, _REQUESTS):
        method, params = document.member(entry, "method"), document.member(entry, "params")
        if method is None or method.text is None:
            raise Unjudgeable("an entry of inputRequests has no method")
        more = f',"params":{document.written(params.value)}' if params else ""
        text = f'{{"jsonrpc":"2.0","id":{quote(key)},"method":{quote(method.text)}{more}}}'
        end = method.value.end
        start, end = (params.value.start, params.value.end) if params else (end, end)
        asked = _alone(text, limits)
        found.append(Carried(asked, key, start, end, "" if params else ',"params":'))
    return found


def carried_responses(message: Request, limits: Limits) -> list[Carried]:
    """Return the answers in a request. Raises ProtocolError if they cannot be judged."""
    if message.params is None or not _COULD_CARRY[_RESPONSES].search(message.place.text):
        return []
    document, found = Document(message.place.text), []
    for key, entry in _entries(document, message.params, _RESPONSES):
        text = f'{{"jsonrpc":"2.0","id":{quote(key)},"result":{document.written(entry)}}}'
        found.append(Carried(_alone(text, limits), key, entry.start, entry.end))
    return found


def carried_subscriptions(message: Request | Notification, limits: Limits) -> list[Carried]:
    """Return the resources in a subscription. Raises ProtocolError if they cannot be judged."""
    document, found = Document(message.place.text), []
    asked = _member(document, message.params, "notifications")
    uris = _member(document, asked, "resourceSubscriptions")
    if uris is None or document.written(uris) == "null":
        return []
    if uris.elements is None:
        raise Unjudgeable("resourceSubscriptions is not a list")
    id = message.id if isinstance(message, Request) else '""'
    for uri in uris.elements:
        written = document.written(uri)
        params = f'{{"uri":{written}}}'
        text = f'{{"jsonrpc":"2.0","id":{id},"method":"{SUBSCRIBE}","params":{params}}}'
        found.append(Carried(_alone(text, limits), "", uri.start, uri.end))
    return found


def with_changes(place: Place, changes: Sequence[tuple[Carried, Single]]) -> bytes:
    """Return the carrier's text with the changed messages in it."""
    pieces, past = [], place.start
    for carried, message in sorted(changes, key=lambda change: change[0].start):
        pieces += [place.text[past : carried.start], carried.changed_part(message)]
        past = carried.end
    return "".join([*pieces, place.text[past : place.end]]).encode()


def _entries(document: Document, holder: Value, name: str) -> Iterator[tuple[str, Value]]:
    """Yield the entries of a mapping, by key; each is an object."""
    entries = _member(document, holder, name)
    if entries is None or document.written(entries) == "null":
        return
    if entries.members is None:
        raise Unjudgeable(f"{name} is not an object")
    for member in entries.members:
        entry = document.open(member.value)
        if entry.members is None:
            raise Unjudgeable(f"an entry of {name} is not an object")
        yield member.key, entry


def _member(document: Document, holder: Value | None, name: str) -> Value | None:
    if holder is None:
        return None
    member = document.member(document.open(holder), name)
    return document.open(member.value) if member else None


def _alone(text: str, limits: Limits) -> Request | Response:
    message = parse_message(text.encode(), limits)
    if isinstance(message, Batch | Notification):
        raise Unjudgeable("a carried message is neither a request nor an answer")
    return message
