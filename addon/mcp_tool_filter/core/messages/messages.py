"""Parse JSON-RPC messages, and refuse any that two careful readers could read differently.

>>> parse_message(b'{"jsonrpc": "2.0", "id": 7.0, "method": "ping"}')
Request(method='ping', id='7.0')

Readers differ on a repeated key, a key in another case, ``result`` beside ``method``, or a method
that is nearly ``tools/call``. Such a message raises ``ProtocolError``. Deep inside ``params`` these
oddities are harmless and pass. Keys that a careless reader could confuse fold to the same text
(``fold``). The rules only make sense together: each relies on the others to refuse the rest.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import field
from json.encoder import encode_basestring_ascii
from types import MappingProxyType
from urllib.parse import unquote

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import MOST_SEARCHED, Limits, OverLimit, frozen
from mcp_tool_filter.core.messages.scan import (
    EACH,
    Many,
    Member,
    Outline,
    Value,
    has_lone_surrogate,
    scan,
)

_ESCAPED_SPACE = re.compile(r"\\[bfnrt]")
_SHORT_KEY = 256  # characters
_MOST_FOLDED = 20_000  # characters whose folded form we keep


def fold(key: str) -> str:
    """Return the key without differences in case, width, NUL and space, which some readers ignore.

    >>> fold("Param\u017f"), fold("method\\0x"), fold(" NAME"), fold("na\\u200bme")
    ('params', 'method', 'name', 'name')
    """
    plain = key if key.isprintable() else key.split("\0", 1)[0]
    if plain.isascii() and plain.isprintable():
        return plain.strip().lower()
    if len(plain) <= _SHORT_KEY:
        return plain.translate(_FOLDED)
    return plain.translate({code: _FOLDED[code] for code in map(ord, set(plain))})


class _Folded(dict[int, int | str | None]):
    """The folded form of each character. (Normalizing a whole text can take quadratic time.)"""

    def __missing__(self, code: int) -> int | str | None:
        folded = self._find(code)
        if len(self) < _MOST_FOLDED:
            self[code] = folded
        return folded

    def _find(self, code: int) -> int | str | None:
        if 0xAC00 <= code <= 0xD7A3 or 0x4E00 <= code <= 0x9FFF:
            return code  # Hangul and Han
        char = chr(code)
        if unicodedata.category(char)[0] in "CZM":
            return None
        # Java takes a dotless i for an i.
        plain = unicodedata.normalize("NFKC", char).casefold().replace("\u0131", "i")
        return "".join(one for one in plain if unicodedata.category(one)[0] not in "CZM")


_FOLDED = _Folded()


def bare_json(json_text: str) -> str | None:
    """Return the JSON with all keys folded; None if it has escapes or characters beyond ASCII.

    (It also drops underscores, which some readers ignore in a key.)
    """
    if "\\u" in json_text or "\x7f" in json_text or not json_text.isascii():
        return None
    return _ESCAPED_SPACE.sub("", json_text).replace("_", "").lower()


def is_too_long_to_search(json_text: str) -> bool:
    """Tell whether JSON has so many objects and members that looking at each takes too long."""
    if len(json_text) < 2 * MOST_SEARCHED:
        return False
    return json_text.count("{") + json_text.count(":") > MOST_SEARCHED


INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UPSTREAM_LOST = -32000
NOT_LOGGED_IN = -32010
HEADER_MISMATCH = -32020

# We open only a definition's own members; deeper values are only checked.
A_TOOL: Outline = {}
_TOOLS: Outline = {"tools": Many({EACH: A_TOOL})}
_ONE: Outline = {"params": {**_TOOLS, "_meta": {}}, "result": _TOOLS, "error": {}}
_MESSAGE: Outline = {**_ONE, EACH: _ONE}
_ENVELOPE = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_LIMITS = Limits()
_NUMBER_OR_STRING = '"-0123456789'
_LIKE_AN_ID = re.compile(
    rb'"id"\s*:\s*("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}){0,256}"'
    rb"|-?(?:0|[1-9]\d{0,256})(?:\.\d{1,256})?(?:[eE][+-]?\d{1,9})?(?=[\s,}]))"
)
_LONGEST_METHOD = 1000  # characters; the longest that we know has 40
_NEAR = 4096
_LONGEST_ID = 16 * 1024  # characters as written: every client that we know needs fewer than 100
_LONGEST_EXPONENT = 18  # digits
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_LIKE_A_CALL = re.compile(r"(?:.*[\W_])?tools[\W_]*call[\W_]*", re.DOTALL)
_AS_IN_A_URL = re.compile(r"[?#;]")
_LIKE_AN_INDEX = re.compile(r"-?[0-9]+")


@frozen
class Place:
    """The place of a message: a whole document, or a member of a batch."""

    text: str = ""
    start: int = 0
    end: int = 0

    def cut(self, part: Value) -> str:
        """Return a part of the message as it was written."""
        return self.text[part.start : part.end]

    @property
    def raw(self) -> bytes:
        return self.text[self.start : self.end].encode()


class UnreadPlace(Place):
    """A place in a document that is known to be UTF-8. It decodes the text on each access."""

    __slots__ = ("_document",)
    _document: bytes

    def __init__(self, document: bytes, start: int, end: int) -> None:
        for name, value in (("_document", document), ("start", start), ("end", end)):
            object.__setattr__(self, name, value)  # as frozen dataclasses do

    @property
    def text(self) -> str:
        return self._document.decode()

    def raw_of(self, part: Value) -> memoryview:
        """Return a part of the document; the text before and after the part must be ASCII."""
        after = len(self._document) - len(self._document.rstrip(b" \t\r\n"))
        end = len(self._document) - after - (self.end - part.end)
        return memoryview(self._document)[part.start : end]


@frozen
class Request:
    """The sender waits for a Response with the same id. (We keep the id as it was written.)"""

    method: str
    id: str
    params: Value | None = field(default=None, repr=False)
    place: Place = field(default_factory=Place, repr=False)


@frozen
class Notification:
    method: str
    params: Value | None = field(default=None, repr=False)
    place: Place = field(default_factory=Place, repr=False)


@frozen
class Response:
    id: str | None
    result: Value | None = field(default=None, repr=False)
    """None if it is an error."""
    place: Place = field(default_factory=Place, repr=False)
    listing: object = field(default=None, repr=False, compare=False)
    """The list of tools in it (``tools.Listing``), if that was read in steps."""


@frozen
class Batch:
    members: tuple[Request | Notification | Response, ...]


type Single = Request | Notification | Response
type Message = Single | Batch


def parse_message(
    raw: bytes, limits: Limits = _LIMITS, read: Mapping[int, Value] = MappingProxyType({})
) -> Message:
    """Read a message; ``read`` are values in it that have been read before. Raises ProtocolError if
    we cannot judge it."""
    text, root = scan(raw, _MESSAGE, limits, read)
    if root.members is not None:
        return _single(text, root)
    if not root.elements:
        raise ProtocolError("not a JSON-RPC message")
    return Batch(tuple(_single(text, element) for element in root.elements))


def read_message(raw: bytes) -> Message | None:
    """Read a message of any length; None if we cannot judge it."""
    try:
        return parse_message(raw, Limits(message=max(1, len(raw))))
    except ProtocolError:
        return None


def is_json_rpc(raw: bytes, limits: Limits = _LIMITS) -> bool:
    """Tell whether JSON could be meant as a message. Raises ProtocolError if it is not JSON."""
    text, _ = scan(raw, None, limits)
    return _holds_message(text)


def ids_in(raw: bytes, limits: Limits = _LIMITS) -> list[str]:
    """Return the ids of a message that we refuse, as far as they are unambiguous."""
    try:
        text, root = scan(raw, {EACH: {}}, limits)
    except ProtocolError:
        return []
    objects = [root] if root.members is not None else root.elements or ()
    found = [
        [member.value for member in one.members or () if fold(member.key) == "id"]
        for one in objects
    ]
    return [
        _written(text, values[0])
        for values in found
        if len(values) == 1 and _is_id(text, values[0]) and not _is_long(values[0])
    ]


def ids_guessed_in(raw: bytes) -> list[str]:
    """Return every possible id near the ends of a message that cannot be parsed."""
    ends = raw if len(raw) <= 2 * _NEAR else raw[:_NEAR] + b" " + raw[-_NEAR:]
    return [id.decode() for id in _LIKE_AN_ID.findall(ends) if is_utf8(id)]


def id_value(written: str) -> str:
    """Return the same text for every spelling of an id; a number is never a string.

    >>> id_value('"\\u0061"'), id_value("1.0"), id_value("10e-1"), id_value('"1"')
    ('"a"', '1', '1', '"1"')
    """
    if written.isdigit() or (written[0] == '"' and "\\" not in written):
        return written  # nearly all ids look like this
    if written[0] == '"':
        return f'"{json.loads(written)}"'
    number = _NUMBER.fullmatch(written)
    return _number_value(*number.groups("")) if number else written


def _number_value(sign: str, whole: str, fraction: str, exponent: str) -> str:
    digits = (whole + fraction).lstrip("0")
    short = digits.rstrip("0")
    if not short:
        return "0"
    shift = exponent.lstrip("+-0")
    if len(shift) > _LONGEST_EXPONENT:  # nobody writes such a number in two ways
        return f"{sign}{whole}.{fraction}e{exponent}"
    power = int(shift or "0") * (-1 if exponent.startswith("-") else 1)
    power += len(digits) - len(short) - len(fraction)
    if 0 <= power <= _LONGEST_ID:
        return sign + short + "0" * power
    return f"{sign}{short}e{power}"


def singles(message: Message) -> Iterator[Single]:
    """Yield the message, or the members of a batch."""
    if isinstance(message, Batch):
        yield from message.members
    else:
        yield message


def render_error(id: str | None, code: int, message: str) -> bytes:
    """Write an error reply; ``id`` is written as it was read, None as null."""
    error = f'{{"code":{code},"message":{quote_harmlessly(message)}}}'
    return f'{{"jsonrpc":"2.0","id":{id or "null"},"error":{error}}}'.encode()


def quote_harmlessly(text: str) -> str:
    """Render a string in ASCII and without markup: no reader of lines or events finds a line end in
    it, and no page that shows the bytes runs it.

    >>> print(quote_harmlessly("<b>\u2028&"))
    "\\u003cb\\u003e\\u2028\\u0026"
    """
    quoted = encode_basestring_ascii(text)
    return quoted.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render_batch(replies: list[bytes]) -> bytes:
    return b"[" + b",".join(replies) + b"]"


def _single(text: str, root: Value) -> Single:
    if root.members is None:
        raise ProtocolError("not a JSON-RPC message")
    place = Place(text, root.start, root.end)
    parts = _envelope(text, root)
    version = parts.get("jsonrpc")
    if version is None or version.text != "2.0":
        raise ProtocolError("not a JSON-RPC 2.0 message")
    if (method := parts.get("method")) is None:
        return _response(parts, place)
    if "result" in parts or "error" in parts:
        raise ProtocolError("both a request and a response")
    if method.text is None:
        raise ProtocolError("the method is not a string")
    refuse_lookalike(method.text)
    params = parts.get("params")
    if params is not None and _written(text, params) == "null":
        params = None  # some libraries write null for "no params"
    if params is not None and text[params.start] not in "{[":
        raise ProtocolError("params is neither an object nor an array")
    if (id := parts.get("id")) is None:
        return Notification(method.text, params, place)
    return Request(method.text, _id(text, id, or_null=True), params, place)


def _response(parts: Mapping[str, Value], place: Place) -> Response:
    text = place.text
    if ("result" in parts) == ("error" in parts) or "params" in parts:
        raise ProtocolError("neither a request nor a response")
    if result := parts.get("result"):
        if "id" not in parts:
            raise ProtocolError("a result without an id")
        return Response(_id(text, parts["id"], or_null=False), result, place)
    _check_error(text, parts["error"])
    if (id := parts.get("id")) is None or _written(text, id) == "null":
        return Response(None, None, place)
    return Response(_id(text, id, or_null=False), None, place)


def _check_error(text: str, error: Value) -> None:
    refuse_repeated(error)
    code, message = error.get("code"), error.get("message")
    if code is None or not re.fullmatch(r"-?\d+", _written(text, code)):
        raise ProtocolError("an error without an integer code")
    if message is None or message.text is None:
        raise ProtocolError("an error without a message")


def _envelope(text: str, root: Value) -> Mapping[str, Value]:
    """Return the members by key, and refuse keys that two readers could read differently."""
    refuse_repeated(root)
    if not _ENVELOPE.issuperset(root.named):  # as few
        for key, value in root.named.items():
            if key in _ENVELOPE:
                continue
            if fold(key) in _ENVELOPE or is_misleading(key):
                raise ProtocolError("a key that could be taken for another")
            if _holds_message(_written(text, value)):
                raise ProtocolError("a message within a message")
    return root.named


def _holds_message(json_text: str) -> bool:
    """Tell whether some reader could find a message in the JSON, at any depth."""
    if "jsonrpc" in json_text.lower():
        return True
    bare = bare_json(json_text)
    if bare is not None and "method" not in bare and "jsonrpc" not in bare:
        return False
    if is_too_long_to_search(json_text):
        raise OverLimit(f"more than {MOST_SEARCHED} members beside the message")
    found: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        found.extend(fold(key) for key, _ in pairs)

    json.loads(json_text, object_pairs_hook=note, parse_int=str)
    return not {"jsonrpc", "method"}.isdisjoint(found)


def refuse_repeated(value: Value) -> None:
    """Raise ProtocolError if an object has the same key twice."""
    if value.members is not None and len(value.named) != len(value.members):
        raise ProtocolError("the same key twice")


def refuse_misreadable(members: tuple[Member, ...], known: frozenset[str]) -> None:
    """Raise ProtocolError for keys that a careless reader could confuse with one another."""
    if len({fold(member.key) for member in members}) != len(members):
        raise ProtocolError("keys that could be taken for one another")
    for member in members:
        if member.key not in known and (fold(member.key) in known or is_misleading(member.key)):
            raise ProtocolError("a key that could be taken for another")


def is_misleading(key: str) -> bool:
    """Tell whether a key changes the kind of its object: JavaScript's prototype, PHP's list."""
    plain = fold(key)
    return plain == "__proto__" or _LIKE_AN_INDEX.fullmatch(plain) is not None


def refuse_lookalike(method: str) -> None:
    """Raise ProtocolError for a method that a careless reader takes for ``tools/call``."""
    if len(method) > _LONGEST_METHOD:
        raise ProtocolError(f"a method longer than {_LONGEST_METHOD} characters")
    if method != "tools/call" and is_like_a_call(method):
        raise ProtocolError("a method that could be taken for another")
    if not method.isascii() and has_lone_surrogate(method):
        raise ProtocolError("half a surrogate pair in the method")


def is_like_a_call(text: str) -> bool:
    """Tell whether some reader could take the text for ``tools/call``, also as a path or in other
    case.

    >>> [is_like_a_call(text) for text in ("Tools.Call", "/x/tools%2fcall?", "tools/calls")]
    [True, True, False]
    """
    if text.isascii() and text.isprintable() and "%" not in text and "call" not in text.lower():
        return False  # nearly all methods: nothing is escaped or disguised
    path = _AS_IN_A_URL.split(unquote(unquote(text)), maxsplit=1)[0]
    return _LIKE_A_CALL.fullmatch(fold(path)) is not None


def _id(text: str, id: Value, *, or_null: bool) -> str:
    if _is_long(id):
        raise ProtocolError(f"an id that is longer than {_LONGEST_ID} characters")
    written = text[id.start : id.end]
    if written.isdigit():
        return written  # many ids are plain numbers
    if not _is_id(text, id) and not (or_null and written == "null"):
        raise ProtocolError("the id is neither a string nor a number")
    return written


def _is_long(id: Value) -> bool:
    """Tell whether an id is longer than we are willing to remember."""
    return id.end - id.start > _LONGEST_ID


def _is_id(text: str, id: Value) -> bool:
    if id.text is not None and not id.text.isascii() and has_lone_surrogate(id.text):
        return False
    return text[id.start] in _NUMBER_OR_STRING


def _written(text: str, value: Value) -> str:
    return text[value.start : value.end]


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
