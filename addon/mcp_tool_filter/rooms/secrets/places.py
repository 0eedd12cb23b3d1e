r"""Find the strings of a JSON document, their places, and which of them are secret by name.

>>> text = '{"token": "t-1", "env": [{"name": "DB_PASSWORD", "value": "p-2"}], "n": 1}'
>>> from mcp_tool_filter.rooms.secrets.names import is_secret_name
>>> [place.view.text for place in places_in(View.of(text), is_secret_name) if place.is_secret]
['t-1', 'p-2']

A JSON schema may describe a property called ``password``, so in an object with such a name only
``value`` is secret.

A view is unescaped text that knows the original place of each character. So we can replace a secret
in a JSON text within a form field without changing any other byte of the outermost text:

>>> view = unescape_json(View.of(r'a\u0062\nc'))
>>> view.text, view.raw_span(1, 2)
('ab\nc', (1, 7))
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mcp_tool_filter.rooms.secrets.names import is_secret_header
from mcp_tool_filter.rooms.secrets.shapes import basic_parts, has_digit

type _Meaning = Callable[[re.Match[str]], str]

_JSON_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_PERCENT = re.compile(r"%([0-9a-fA-F]{2})")
_PERCENT_OR_PLUS = re.compile(r"%([0-9a-fA-F]{2})|\+")


@dataclass(frozen=True, slots=True)
class View:
    """A text; ``at`` has the original place of each character and of the end."""

    text: str
    at: Sequence[int]

    @classmethod
    def of(cls, text: str) -> View:
        return cls(text, range(len(text) + 1))

    def part(self, start: int, end: int) -> View:
        return View(self.text[start:end], self.at[start : end + 1])

    def raw_span(self, start: int, end: int) -> tuple[int, int]:
        return self.at[start], self.at[end]


def unescape_json(view: View) -> View:
    """Decode the escapes of a JSON string (given without quotes)."""
    return _unescaped(view, _JSON_ESCAPE, _json_meaning) if "\\" in view.text else view


def unescape_percent(view: View, *, plus: bool = False) -> View:
    """Decode percent escapes; with ``plus``, as in forms, a plus sign is a space."""
    if "%" not in view.text and not (plus and "+" in view.text):
        return view
    return _unescaped(view, _PERCENT_OR_PLUS if plus else _PERCENT, _percent_meaning)


def joined(parts: Sequence[View]) -> View:
    """Join lines with line feeds."""
    text = "\n".join(part.text for part in parts)
    at: list[int] = []
    for part in parts:
        at.extend(part.at)  # the end of a line is where its line feed is
    return View(text, at or [0])


def _unescaped(view: View, escape: re.Pattern[str], meaning: _Meaning) -> View:
    pieces: list[str] = []
    at: list[int] = []
    done = 0
    for found in escape.finditer(view.text):
        pieces.append(view.text[done : found.start()])
        at.extend(view.at[done : found.start()])
        pieces.append(meaning(found))
        at.append(view.at[found.start()])
        done = found.end()
    pieces.append(view.text[done:])
    at.extend(view.at[done:])
    return View("".join(pieces), at)


def _json_meaning(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _SHORT_ESCAPES.get(found[2], found[2])


def _percent_meaning(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else " "


_PLACEHOLDER = re.compile(r"\$?\{\{?[\w .-]*\}?\}|<[\w -]*>|\*+|\.{3}|null|none|true|false", re.I)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, and its place."""

    start: int
    end: int
    value: str
    """The secret without escapes."""
    is_number: bool = False


@dataclass(slots=True)
class Findings:
    """The findings in one text."""

    secrets: list[Secret] = field(default_factory=list)
    related: list[str] = field(default_factory=list)
    """Secrets contained in another form, such as the password in a Basic credential."""
    unread: list[str] = field(default_factory=list)
    """Descriptions of the parts that could not be read."""

    def mark(self, view: View, start: int = 0, end: int | None = None) -> None:
        """Note a secret, each of its lines separately, so that line ends stay."""
        text = view.text[start : len(view.text) if end is None else end]
        for line in re.finditer(r"[^\r\n]+", text):
            if not _PLACEHOLDER.fullmatch(line[0].strip()):
                raw = view.raw_span(start + line.start(), start + line.end())
                self.secrets.append(Secret(*raw, line[0]))

    def mark_number(self, view: View) -> None:
        raw = view.raw_span(0, len(view.text))
        self.secrets.append(Secret(*raw, view.text, is_number=True))

    def sorted(self) -> Findings:
        """Return the findings without overlaps: of two secrets, keep the outer or first one."""
        apart: list[Secret] = []
        done = 0
        for one in sorted(self.secrets, key=lambda one: (one.start, -one.end)):
            if one.start >= done and one.end > one.start:
                apart.append(one)
                done = one.end
            elif one.end > done:  # the rest of a secret that begins within another
                rest = one.value[-(one.end - done) :]
                apart.append(Secret(done, one.end, rest, one.is_number))
                done = one.end
        return Findings(apart, self.related, list(dict.fromkeys(self.unread)))


def replace(text: str, secrets: Iterable[Secret], mask: Callable[[Secret], str]) -> str:
    """Return the text with each secret replaced. (They must be sorted, without overlaps.)"""
    parts: list[str] = []
    done = 0
    for secret in secrets:
        parts += [text[done : secret.start], mask(secret)]
        done = secret.end
    return "".join([*parts, text[done:]])


_TOKEN = re.compile(r'"((?:[^"\\]++|\\.)*+)"?|([{}\[\]:,])|([^\s{}\[\]:,"]++)', re.DOTALL)
_START = re.compile(r"[{\[]")
_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,100}")
_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]{3,}")
_LONG_KEY = 16  # characters; a longer key could be a secret itself
_LONG = 16  # characters; a shorter session id or code could be a name
_MOST_FAILURES = 16  # failed starts of JSON; a text with more is code

_VALUES = frozenset({"value", "values", "plaintext", "raw", "key", "access", "refresh"})
_GROUPS = frozenset({"tokens", "credentials", "auth", "oauth"})
_NAMES = frozenset({"name", "key", "header", "field", "variable"})
_JWK = frozenset({"d", "p", "q", "dp", "dq", "qi", "k", "r", "t"})
"""The private members of a key, which has ``kty`` (RFC 7518)."""
_SCHEMA = frozenset(
    {"type", "description", "$ref", "properties", "items", "anyof", "enum", "title"}
)
"""Members that describe a value instead of having it."""
_SESSIONS = frozenset({"sessionid", "session_id", "session-id"})
_LOGIN = frozenset({
    "grant_type", "code_verifier", "client_id", "redirect_uri", "granttype", "codeverifier",
    "clientid", "redirecturi",
})  # fmt: skip
"""Next to one of these, ``code`` is an authorization code, not a number or text."""


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A string without its quotes, or a number."""

    view: View
    is_secret: bool
    is_number: bool = False
    path: int | None = None
    """The same number for strings at the same place of their documents; None for a key."""


@dataclass(slots=True)
class _Level:
    """An open object or array."""

    is_object: bool
    path: int
    kind: str = ""
    """The name of the outer member if it matters: ``secret``, ``headers`` or ``cookies``."""
    key: str | None = None
    keys: set[str] = field(default_factory=set)
    name: str = ""
    strings: list[tuple[str, View]] = field(default_factory=list)
    """What may be secret because of the members next to it, with its key in lower case."""


def documents_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of objects and lists in a text."""
    failures = at = 0
    while failures < _MOST_FAILURES and (start := _START.search(text, at)):
        end = _end_of_document(text, start.start())
        if end is None:
            failures += 1
            at = start.end()
        else:
            yield start.start(), end
            at = end


def _end_of_document(text: str, start: int) -> int | None:
    try:
        _, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return end


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, strict=False, object_pairs_hook=bool)


def places_in(view: View, is_secret_name: Callable[[str], bool]) -> Iterator[JsonPlace]:
    """Yield the strings of a document, and the numbers that are secret."""
    levels = [_Level(is_object=False, path=0)]
    pending: View | None = None  # a string that may be a key
    for token in _TOKEN.finditer(view.text):
        level = levels[-1]
        if token[1] is not None:
            if pending is not None:
                yield from _value(level, pending, is_secret_name)
            pending = view.part(*token.span(1))
            continue
        if token[2] == ":" and pending is not None:
            level.key = unescape_json(pending).text
            level.keys.add(level.key.lower())
            if len(pending.text) >= _LONG_KEY:
                yield JsonPlace(pending, is_secret=False)
            pending = None
            continue
        if pending is not None:
            yield from _value(level, pending, is_secret_name)
            pending = None
        if token[2] in ("{", "["):
            levels.append(_opened(level, token[2], is_secret_name))
        elif token[2] in ("}", "]"):
            yield from _closed(levels.pop() if len(levels) > 1 else level, is_secret_name)
            levels[-1].key = None
        elif token[2] == ",":
            level.key = None
        elif token[3] and _NUMBER.fullmatch(token[3]) and _is_secret(level, is_secret_name):
            yield JsonPlace(view.part(*token.span(3)), is_secret=True, is_number=True)
    if pending is not None:
        yield from _value(levels[-1], pending, is_secret_name)


def _opened(level: _Level, bracket: str, is_secret_name: Callable[[str], bool]) -> _Level:
    key = (level.key or "").lower()
    kind = level.kind if not level.is_object else ""
    if key in ("headers", "cookies"):
        kind = key
    elif level.key and (is_secret_name(level.key) or (bracket == "{" and key in _GROUPS)):
        kind = "secret"
        if bracket == "{" and key.endswith("s") and key not in _GROUPS:
            kind = "secrets"  # by name or by user
    elif key == "tokens":  # or words of a text
        kind = "tokens"
    return _Level(bracket == "{", _path_in(level), kind)


def _path_in(level: _Level) -> int:
    return hash((level.path, level.key))


def _value(level: _Level, view: View, is_secret_name: Callable[[str], bool]) -> Iterator[JsonPlace]:
    key = (level.key or "").lower()
    is_long = _is_random(view.text)
    is_credential = key == "auth" and bool(is_long or basic_parts(view.text))
    if (
        _is_secret(level, is_secret_name)
        or is_credential
        or (is_long and (key in _SESSIONS or level.kind == "tokens"))
    ):
        yield JsonPlace(view, is_secret=True)
        return
    if level.is_object and key in _NAMES:
        level.name = unescape_json(view).text
    level.strings.append((key, view))
    yield JsonPlace(view, is_secret=False, path=_path_in(level))


def _is_secret(level: _Level, is_secret_name: Callable[[str], bool]) -> bool:
    if not level.is_object:
        return level.kind in ("secret", "secrets")
    key = level.key or ""
    match level.kind:
        case "cookies":
            return True
        case "headers" if is_secret_header(key.lower()):
            return True
        case "secret" | "secrets" if key.lower() in _VALUES:
            return True
    return is_secret_name(key)


def _is_random(value: str) -> bool:
    return len(value) >= _LONG and has_digit(value)


def _closed(level: _Level, is_secret_name: Callable[[str], bool]) -> Iterator[JsonPlace]:
    """Yield the values that are secret because of other members next to them."""

    def names_a_secret(name: str) -> bool:
        is_name = _NAME.fullmatch(name) is not None  # not a text
        return is_name and (is_secret_name(name) or is_secret_header(name.lower()))

    if not level.is_object:
        if len(level.strings) == 2:  # some write headers like this: [name, value]
            name, value = (unescape_json(string).text for _, string in level.strings)
            is_value = len(value) >= 6 and has_digit(value)
            if is_value and names_a_secret(name):
                yield JsonPlace(level.strings[1][1], is_secret=True)
        return
    is_login = not _LOGIN.isdisjoint(level.keys)
    describes = level.kind != "secrets" or not _SCHEMA.isdisjoint(level.keys)
    for key, view in level.strings:
        if (
            not describes
            or (key == "code" and (is_login or ("state" in level.keys and _is_random(view.text))))
            or (key in _JWK and "kty" in level.keys)
            or (key == "value" and names_a_secret(level.name))
        ):
            yield JsonPlace(view, is_secret=True)
