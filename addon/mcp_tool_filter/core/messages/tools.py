"""Parse MCP tool calls and tool lists; definitions keep their original bytes.

>>> from mcp_tool_filter.core.messages.messages import parse_message
>>> answer = parse_message(
...     b'{"jsonrpc": "2.0", "id": 1, "result": '
...     b'{"tools": [{"name": "a", "inputSchema": {}}], "x": 1.0}}'
... )
>>> listing = parse_listing(answer)
>>> listing.definitions
(Definition(name='a', problem=None, raw=b'{"name": "a", "inputSchema": {}}'),)
>>> listing.with_tools([])
b'{"jsonrpc": "2.0", "id": 1, "result": {"tools": [], "x": 1.0}}'

Calls and lists are read here, because they must read a tool's name in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple, cast

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.messages import (
    Place,
    Response,
    Single,
    bare_json,
    fold,
    is_misleading,
    is_too_long_to_search,
)
from mcp_tool_filter.core.messages.scan import Member, Value, has_lone_surrogate, open_value

# Content that tools, resources and prompts return, and requests of an upstream to the client.
_CONTENT = frozenset({"content", "structuredContent", "contents", "messages", "inputRequests"})
# Members whose string value some reader may parse as JSON again.
_HOLDERS = frozenset({"result", "tools"})
_USUAL_KEYS = frozenset(
    {"name", "title", "description", "inputschema", "outputschema", "annotations", "_meta", "icons"}
)
_FEW_NAMES = 50  # so few are searched for one by one; of more, a text counts as naming one
_LONGEST_KEPT = 64  # characters of a key


@dataclass(frozen=True, slots=True)
class Definition:
    """One tool of a list. A definition with a ``problem`` must not be shown."""

    name: str | None
    problem: str | None
    raw: bytes
    has_schema: bool = field(default=True, repr=False)
    """True if it has a key that some reader takes for a tool's schema."""
    is_described: bool = field(default=True, repr=False)
    """True if it has a description: then it may be a tool without a schema."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A message that carries tool definitions, whatever it answers."""

    definitions: tuple[Definition, ...]
    next_cursor: str | None
    frame: tuple[str, str] = field(repr=False)
    """The result's text before and after its tools, without the cursor."""
    head: str = field(repr=False)
    tail: str = field(repr=False)
    around: tuple[str, str] | None = field(default=None, repr=False)
    """Head and tail as they must be if the tools are others; None if that is no difference."""

    @property
    def has_definitions(self) -> bool:
        """True if it lists tools, and not only things that have names."""
        return any(definition.has_schema for definition in self.definitions)

    @property
    def surroundings(self) -> str:
        """The message without its tools."""
        return self.head + "null" + self.tail

    def with_tools(self, tools: Iterable[bytes]) -> bytes:
        """Return the message with other tools; everything around them stays unchanged, except what
        it says of the list as it was (``cache_edits``)."""
        head, tail = self.around or (self.head, self.tail)
        written = b",".join(tools)
        return b"".join([head.encode(), b"[", written, b"]", tail.encode()])


def parse_listing(
    message: Single, definitions: tuple[Definition, ...] | None = None
) -> Listing | None:
    """Return the tool list that a message carries, or None if it carries none.

    Its ``definitions`` may have been read before. Raises ProtocolError for anything that some
    reader may take for a list.
    """
    if isinstance(message, Response) and message.listing is not None:
        return cast("Listing", message.listing)
    holder = message.result if isinstance(message, Response) else message.params
    if holder is None or holder.members is None:
        return None
    alike = [key for key in holder.named if fold_key(key) == "tools"]
    if not alike:
        return None
    if len(holder.named) != len(holder.members):
        alike = [member.key for member in holder.members if fold_key(member.key) == "tools"]
    tools = holder.named.get("tools")
    if tools is None or tools.elements is None or len(alike) > 1:
        raise ProtocolError("a tool list that could be read in two ways")
    if definitions is None:
        text = message.place.text
        definitions = tuple(read_definition(text, element) for element in tools.elements)
    return _listing(message.place, holder, tools, definitions)


HIDDEN_TOOL = "the definition of a hidden tool outside of a tool list"


class ShowsHidden(ProtocolError):
    """A message can be read, but shows a hidden tool that cannot be removed."""


def find_listing(message: Single, hidden: Collection[str], *, expected: bool) -> Listing | None:
    """Return the tool list that a message carries, or None if it carries none.

    Raises ProtocolError if some reader may take something else for a list, or if a hidden tool
    shows elsewhere. If no list is ``expected``, the list may have names without definitions.
    """
    try:
        listing = parse_listing(message)
    except ProtocolError:
        if expected:
            raise
        listing = None
    if listing and (expected or listing.has_definitions):
        return listing
    if shows_tool_beside_content(message, hidden, has_list=listing is None):
        raise ShowsHidden(HIDDEN_TOOL)
    return listing


def besides_content(message: Single) -> str:
    """Return a message without the content that tools, prompts and resources return."""
    place = message.place
    result = message.result if isinstance(message, Response) else None
    pieces = []
    start = place.start
    for member in (result and result.members) or ():
        if member.key in _CONTENT:
            pieces.append(place.text[start : member.value.start])
            start = member.value.end
    return "null".join([*pieces, place.text[start : place.end]])


def shows_tool_beside_content(
    message: Single, names: Collection[str], *, has_list: bool = True
) -> bool:
    """Tell whether a message shows one of these tools outside such content."""
    return bool(names) and _shows(besides_content(message), names, has_list=has_list)


def shows_tool(json_text: str, names: Collection[str]) -> bool:
    """Tell whether JSON shows the definition of one of these tools.

    A definition is an object with an ``inputSchema``, at any depth, or an entry of a list: of
    ``tools`` in a document, or in the result or the params of a message. Elsewhere a name hides
    nothing: ``"tasks": {"requests": {"tools": {"call": {}}}}`` is a capability. JSON that is too
    long to search counts as showing one.
    """
    return bool(names) and _shows(json_text, names)


def _shows(json_text: str, names: Collection[str], *, has_list: bool = True) -> bool:
    if not _may_show_tool(json_text, names):
        return False
    root = _Place.DOCUMENT if has_list else _Place.ELSEWHERE
    return is_too_long_to_search(json_text) or _Search(names).finds_in(json_text, root)


def may_carry_another(definition: str) -> bool:
    """Tell whether a tool's definition may have that of another tool in it: nearly none has."""
    bare = bare_json(definition)
    if bare is None or bare.count("inputschema") > 1:
        return True  # else the only schema is its own
    return any(word in bare for word in _HOLDERS)


def carries(definition: str, names: Collection[str]) -> bool:
    """Tell whether such a definition has that of one of these tools in it."""
    return bool(names) and _shows(definition, names, has_list=False)


def carries_another(definition: str, names: Collection[str]) -> bool:
    """Tell the same of any definition."""
    return bool(names) and may_carry_another(definition) and carries(definition, names)


def _may_show_tool(json_text: str, names: Collection[str]) -> bool:
    bare = bare_json(json_text)
    if bare is None:
        return True
    if "schema" not in bare and "tools" not in bare:
        return False
    if len(names) > _FEW_NAMES or "\\/" in json_text or not all(map(_is_plain, names)):
        return True
    return any(name in json_text for name in names)


def _is_plain(name: str) -> bool:
    """Tell whether JSON in ASCII and without escapes can write a name in one way only."""
    return name.isascii() and name.isprintable() and '"' not in name and "\\" not in name


def fold_key(key: str) -> str:
    """Fold a key. The same few keys come again and again, so we keep the results."""
    return _fold_once(key) if len(key) <= _LONGEST_KEPT else fold(key)


@lru_cache(maxsize=1000)
def _fold_once(key: str) -> str:
    return fold(key)


def _may_hold_schema(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[") and "schema" in text.lower()


class _Place(Enum):
    """Where a value stands, which says what may be a definition there."""

    DOCUMENT = auto()
    HOLDER = auto()
    """The result or the params of a message."""
    ENTRY = auto()
    """Of a list of tools, where a name and a description are enough."""
    ELSEWHERE = auto()
    SCHEMA = auto()
    """In a JSON Schema, ``name`` and ``inputSchema`` are usually properties."""


class _Object(list[tuple[str, object]]):
    """The members of an object, also those with the same key."""


type _Found = tuple[object, str, _Place]
"""A value, the key that may name it, and where it stands."""

_EXAMPLES = frozenset({"default", "example", "examples", "const", "enum"})
"""Keywords of JSON Schema whose values are data."""


class _Search:
    """Looks for the definition of one of these tools."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._waiting: list[_Found] = []

    def finds_in(self, json_text: str, place: _Place = _Place.DOCUMENT) -> bool:
        self._waiting.append((_objects_of(json_text), "", place))
        while self._waiting:
            value, key, place = self._waiting.pop()
            if isinstance(value, _Object):
                if self._is_hidden(value, key, place) or self._opens_hidden(value, place):
                    return True
            elif isinstance(value, list):
                self._waiting += [(one, "", place) for one in value]
        return False

    def _is_hidden(self, tool: _Object, key: str, place: _Place) -> bool:
        """Tell whether an object defines a hidden tool. The key in a map names one without name."""
        names = [said for one, said in tool if fold_key(one) == "name" and isinstance(said, str)]
        schemas = [said for one, said in tool if _plain_key(one) == "inputschema"]
        if place is _Place.SCHEMA:
            is_tool = any(isinstance(schema, _Object) for schema in schemas)
            key = ""
        elif place is _Place.ENTRY:
            is_tool = bool(schemas or names) or any(
                fold_key(one) == "description" for one, _ in tool
            )
        else:
            is_tool = bool(schemas)
        return is_tool and any(name in self._names for name in names or [key] if name)

    def _opens_hidden(self, holder: _Object, place: _Place) -> bool:
        """Look into the members later. Tell whether text that is no JSON may show a hidden tool."""
        for key, value in holder:
            plain = _plain_key(key)
            if isinstance(value, str):
                if plain in _HOLDERS and _may_hold_schema(value) and self._opens_text(value):
                    return True
            elif place is _Place.SCHEMA:
                if plain not in _EXAMPLES:
                    self._waiting.append((value, "", place))
            elif plain.endswith("schema"):
                self._waiting.append((value, "", _Place.SCHEMA))
            elif plain == "tools" and place in (_Place.DOCUMENT, _Place.HOLDER):
                entries = value if isinstance(value, _Object) else [("", value)]
                self._waiting += [(one, name, _Place.ENTRY) for name, one in entries]
            elif plain in ("result", "params") and place is _Place.DOCUMENT:
                self._waiting.append((value, "", _Place.HOLDER))
            else:
                self._waiting.append((value, key, _Place.ELSEWHERE))
        return False

    def _opens_text(self, text: str) -> bool:
        """Look into JSON inside a string where a list is expected."""
        try:
            self._waiting.append((_objects_of(text), "", _Place.DOCUMENT))
        except (ValueError, RecursionError):
            return len(self._names) > _FEW_NAMES or any(name in text for name in self._names)
        return False


def _objects_of(json_text: str) -> object:
    return json.loads(json_text, object_pairs_hook=_Object, parse_int=str)


def _plain_key(key: str) -> str:
    return fold_key(key).replace("_", "")


def _listing(
    place: Place, holder: Value, tools: Value, definitions: tuple[Definition, ...]
) -> Listing:
    cursor = holder.get("nextCursor")
    edits = cache_edits(place.text, holder)
    members = [
        member
        for member in holder.members or ()
        if member.key != "nextCursor" and not says_of_list(member)
    ]
    at = next(number for number, member in enumerate(members) if member.key == "tools")
    written = [
        with_edits(place.text, member.start, member.value.end, edits)
        for number, member in enumerate(members)
        if number != at
    ]
    before = [*written[:at], place.text[members[at].start : tools.start]]
    after = ["", *written[at:]]
    around = None
    if edits:
        around = (
            with_edits(place.text, place.start, tools.start, edits),
            with_edits(place.text, tools.end, place.end, edits),
        )
    return Listing(
        definitions=definitions,
        next_cursor=cursor.text if cursor else None,
        frame=("{" + ",".join(before), ",".join(after) + "}"),
        head=place.text[place.start : tools.start],
        tail=place.text[tools.end : place.end],
        around=around,
    )


class Edit(NamedTuple):
    """A part of a text, and what stands there instead."""

    start: int
    end: int
    text: str


def edited(place: Place, edits: Iterable[Edit]) -> bytes:
    """Return a message with some parts replaced; everything else keeps its bytes."""
    return with_edits(place.text, place.start, place.end, edits).encode()


def with_edits(text: str, start: int, end: int, edits: Iterable[Edit]) -> str:
    pieces, past = [], start
    for edit in sorted(edits):
        if edit.start >= start and edit.end <= end:
            pieces += [text[past : edit.start], edit.text]
            past = edit.end
    return "".join([*pieces, text[past:end]])


def without(
    text: str, array: Value, kept: Sequence[bool], changed: dict[int, str] | None = None
) -> str:
    """Return an array's text without some elements; all else keeps its bytes.

    >>> from mcp_tool_filter.core.messages.scan import EACH, scan
    >>> text, root = scan(b'{"a":[ 1, 2,\\\\n 3 ]}'.replace(b"\\\\n", b" "), {"a": {EACH: None}})
    >>> without(text, root["a"], [False, True, True]), without(text, root["a"], [False] * 3)
    ('[ 2,  3 ]', '[]')
    """
    elements = array.elements or ()
    pieces: list[str] = []
    past = array.start + 1
    for number, (element, is_kept) in enumerate(zip(elements, kept, strict=True)):
        gap, past = (past, element.start), element.end
        if not is_kept:
            continue
        if not pieces:
            gap = array.start + 1, elements[0].start
        new = (changed or {}).get(number)
        pieces += [text[slice(*gap)], text[element.start : element.end] if new is None else new]
    return f"[{''.join(pieces)}{text[past : array.end]}" if pieces else "[]"


_LONGEST_TTL = 60_000
"""Milliseconds for which a client may keep a filtered list: then it sees a change of patterns."""
_TTLS = {"ttlms": _LONGEST_TTL, "ttl": _LONGEST_TTL // 1000}
_SAYS_OF_LIST = re.compile(
    r".*(?:digest|signature|checksum|fingerprint|etag|hash|integrity)|(?:.*/)?(?:signed|proof|jws)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?")
_MOST_EDITS = 100


def cache_edits(text: str, result: Value) -> list[Edit]:
    """Return what must change around a list that is not the upstream's own any more.

    Only this client may keep it, and not for long (SEP-2549); digests and signatures of the list
    as it was are left out.
    """
    edits: list[Edit] = []
    for member in result.members or ():
        key = fold_key(member.key)
        value = member.value
        written = text[value.start : value.end]
        if key == "cachescope" and value.text != "private":
            edits.append(Edit(value.start, value.end, '"private"'))
        elif key in _TTLS and not _is_at_most(written, _TTLS[key]):
            is_number = _NUMBER.fullmatch(written) is not None
            edits.append(Edit(value.start, value.end, str(_TTLS[key]) if is_number else "0"))
        elif key == "_meta" and value.start < value.end:
            meta = open_value(text, value, {})
            edits += removed(meta, [one for one in meta.members or () if says_of_list(one)])
    said = [one for one in result.members or () if says_of_list(one)]
    edits += removed(result, said) if said else ()
    if len(edits) > _MOST_EDITS:  # each is looked for in each member of the result
        raise ProtocolError("too many members that say something of a list")
    return edits


def _is_at_most(written: str, most: int) -> bool:
    """Tell whether JSON is a number, in any spelling, that is not larger."""
    return _NUMBER.fullmatch(written) is not None and float(written) <= most


def says_of_list(member: Member) -> bool:
    """Tell whether a member is a digest or a signature of what it is beside."""
    return len(member.key) < _LONGEST_KEPT and _SAYS_OF_LIST.fullmatch(member.key) is not None


def removed(holder: Value, members: Sequence[Member]) -> Iterator[Edit]:
    """Yield the edits that remove members, each with one comma."""
    every, gone = holder.members or (), set(map(id, members))
    kept_before = False
    for number, member in enumerate(every):
        if id(member) not in gone:
            kept_before = True
            continue
        if kept_before:
            yield Edit(every[number - 1].value.end, member.value.end, "")
        else:
            after = every[number + 1].start if number + 1 < len(every) else member.value.end
            yield Edit(member.start, after, "")


def read_definition(text: str, element: Value) -> Definition:
    """Return the definition of a tool that stands in a list."""
    keys = [fold_key(member.key) for member in element.members or ()]
    name = element.named.get("name")
    return Definition(
        name=name.text if name else None,
        problem=_problem(text, element, keys),
        raw=text[element.start : element.end].encode(),
        has_schema=any(key.replace("_", "") == "inputschema" for key in keys),
        is_described="description" in keys,
    )


def _problem(text: str, element: Value, keys: list[str]) -> str | None:
    if element.members is None:
        return "a tool that is not an object"
    different = set(keys)
    repeats = len(keys) - len(different)
    if repeats and "annotations" in different:  # several sets of hints count as the worst case
        repeats -= keys.count("annotations") - 1
    if repeats or any(map(is_misleading, different - _USUAL_KEYS)):
        return "a tool with a key that could be read in two ways"
    name, schema = element.named.get("name"), element.named.get("inputSchema")
    if name is None or name.text is None:
        return "a tool without a name"
    if has_lone_surrogate(name.text):
        return "half a surrogate pair in the name of a tool"
    if schema is None or text[schema.start] != "{":
        return "a tool without an object inputSchema"
    return None
