"""Read a long tool list in steps, so that other clients are served in between.

>>> raw = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","inputSchema":{}}]}}'
>>> *steps, found = read_in_steps(raw, Limits())
>>> found.response.id, found.listing.definitions[0].name
('1', 'a')

Each step reads the message as if it had only a few of its tools. So all steps see the same text
around the tools, and together they see what one read of the whole would see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from json.decoder import scanstring  # type: ignore[attr-defined]  # as protocol.scan does

from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import Place, Response, parse_message
from mcp_tool_filter.protocol.scan import Value, after_space, decode, skip_value
from mcp_tool_filter.protocol.tools import Definition, Listing, parse_listing

_STEP = 32 * 1024  # characters of definitions per step: a few milliseconds

type _Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LongList:
    response: Response
    """Its result is not parsed further."""
    listing: Listing


def read_in_steps(raw: bytes, limits: Limits) -> Iterator[LongList | None]:
    """Yield None between the steps, and finally the list; no list if it must be read in one go.

    Raises ProtocolError.
    """
    if len(raw) > limits.message:
        return
    text = decode(raw)
    runs: list[_Run] = []
    try:
        for run in _runs_of_tools(text):
            runs.append(run)
            yield None
    except (ValueError, IndexError, RecursionError):
        return  # not JSON
    if not runs:
        return
    head, tail = text[: runs[0][0]], text[runs[-1][1] :]
    definitions: list[Definition] = []
    last: LongList | None = None
    for start, end in runs:
        last = _read_whole(f"{head}{text[start:end]}{tail}", limits)
        if last is None:
            return
        definitions += last.listing.definitions
        yield None
    if last is not None:
        yield _with_all(last, tuple(definitions), text)


def _read_whole(text: str, limits: Limits) -> LongList | None:
    message = parse_message(text.encode(), limits)
    listing = parse_listing(message) if isinstance(message, Response) else None
    return LongList(message, listing) if listing and isinstance(message, Response) else None


def _with_all(part: LongList, definitions: tuple[Definition, ...], text: str) -> LongList:
    """Return the whole message, given the last part and all definitions."""
    of_part, result = part.response.place, part.response.result
    longer = len(text) - len(of_part.text)
    place = Place(text, of_part.start, of_part.end + longer)
    whole = Value(result.start, result.end + longer) if result else None
    return LongList(
        Response(part.response.id, whole, place), replace(part.listing, definitions=definitions)
    )


def _runs_of_tools(text: str) -> Iterator[_Run]:
    """Yield the span of the first few tools of ``result.tools``, then of the next few."""
    at: int | None = after_space(text, 0)
    for key in ("result", "tools"):
        at = _member(text, at, key) if at is not None and text[at] == "{" else None
    if at is None or text[at] != "[":
        return
    first = end = 0
    for start, end in _elements(text, at):
        first = first or start
        if end - first > _STEP:
            yield first, end
            first = 0
    if first:
        yield first, end


def _member(text: str, at: int, key: str) -> int | None:
    """Return where the value of an object's member begins."""
    at = after_space(text, at + 1)
    while text[at] == '"':
        name, end = scanstring(text, at + 1, True)
        value = after_space(text, after_space(text, end) + 1)
        if name == key:
            return value
        end = after_space(text, skip_value(text, value))
        if text[end] != ",":
            break
        at = after_space(text, end + 1)
    return None


def _elements(text: str, at: int) -> Iterator[_Run]:
    """Yield the span of each element of an array."""
    at = after_space(text, at + 1)
    while text[at] != "]":
        end = skip_value(text, at)
        yield at, end
        at = after_space(text, end)
        if text[at] == ",":
            at = after_space(text, at + 1)
            if text[at] == "]":
                raise ValueError("a comma behind the last element")
        elif text[at] != "]":
            raise ValueError("no comma between elements")
