r"""Find secrets in bodies, headers and texts by parsing them.

JSON is parsed as JSON, even within a string or an event; forms and URLs as names and values; free
text is searched for the shapes of secrets. A finding is a place in the outermost text, so that we
can replace it without changing anything else:

>>> body = b'{"grant_type":"refresh_token","refresh_token":"r-1","n":"{\\"api_key\\":\\"k-2\\"}"}'
>>> [(one.start, one.value) for one in SecretFinder().in_body(body, "application/json").secrets]
[(47, 'r-1'), (72, 'k-2')]

Texts are decoded as Latin-1 here, one character per byte, so that places count bytes.

In free text, values come after a secret name: ``password=…``, ``"token": "…"``, ``--api-key …``.

>>> from mcp_tool_filter.rooms.secrets.names import is_secret_name
>>> text = "password=p-1, token: 'two words', and a password: none of your business"
>>> [text[one.start:one.end] for one in named_values_in(text, is_secret_name)]
['p-1', 'two words']

Code and prose contain such names too, so a value without quotes must look like a secret.

Binary data is reported, as far as it cannot be read:

>>> problem_in_text("{}", ""), problem_in_text("\x89PNG\0", ""), decode_base64("aGk")
(None, 'binary data', b'hi')
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import unquote

from mcp_tool_filter.core.http.bodies import EVENT_STREAM, READABLE
from mcp_tool_filter.core.http.shown import looks_secret
from mcp_tool_filter.rooms.secrets.names import (
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
)
from mcp_tool_filter.rooms.secrets.places import (
    Findings,
    View,
    documents_in,
    joined,
    places_in,
    replace,
    unescape_json,
    unescape_percent,
)
from mcp_tool_filter.rooms.secrets.shapes import basic_parts, has_digit, shapes_in

_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.])(--?)?([A-Za-z_][A-Za-z0-9_.-]{1,63}+)(\\{0,63}[\"'])?"
    r"(?:([ \t]{0,4})(=>?|:)([ \t]{0,4})|([ \t]{1,4}))"
)
_QUOTED = re.compile(r"(\\{0,63})([\"'])((?:(?!\1\2)[^\r\n])*+)")
_SCHEME_BEFORE = re.compile(
    r"(?:(?:bearer|basic|token|digest) +(?=[^\s,;&\"'<>(){}\[\]\\]))?", re.IGNORECASE
)
_WORD = re.compile(r"[^\s,;&\"'<>(){}\[\]\\]*")
_ELEMENT = re.compile(
    r"<(?:[A-Za-z0-9]{1,32}:)?([A-Za-z_][A-Za-z0-9_.-]{1,63}+)[^<>]{0,200}>"
    r"(?:([^<>]++)</|\s{0,100}<!\[CDATA\[)"
)
_TAG = re.compile(r"<[^<>]*")
_NAME_IN_TAG = re.compile(
    r"\s(?:name|key|id|property|header|field)\s{0,9}=\s{0,9}[\"']([^\"'<>]{1,64})[\"']",
    re.IGNORECASE,
)
_VALUE_IN_TAG = re.compile(r"\s(?:value|val|content)\s{0,9}=\s{0,9}[\"']([^\"'<>]+)", re.IGNORECASE)
_PROSE = re.compile(
    r"(?<![A-Za-z0-9_-])(?:password|passphrase|secret|token|credential|api[ -]?key)"
    r"(?:\s{1,2}(?:is|was))?\s{0,2}[:=]?\s{1,4}[\"'`]?([A-Za-z0-9_.+/=-]{12,}+)",
    re.IGNORECASE,
)
_UNQUOTED = re.compile(r"[^\r\n\"']*+")
_TOKEN = re.compile(r"[A-Za-z0-9_.+/=-]{12,}")
_LETTER = re.compile(r"[A-Za-z]")
_SHORTEST_RANDOM = 6  # characters
_SHELL_VARIABLE = re.compile(r"\$[A-Z0-9_]*")
_COOKIE = re.compile(r"(?:set-)?cookie", re.IGNORECASE)


class _Word(NamedTuple):
    """The end of a text without spaces, quotes and brackets.

    It may be the value of many names, as in ``a=b=c=1``, so it is read only once.
    """

    end: int
    last_digit: int
    following: str

    @classmethod
    def at(cls, text: str, start: int) -> _Word:
        end = _WORD.match(text, start).end()  # type: ignore[union-attr]  # it may be empty
        last_digit = max(text.rfind(digit, start, end) for digit in "0123456789")
        return cls(end, last_digit, text[end : end + 1])


@dataclass(frozen=True, slots=True)
class NamedValue:
    start: int
    end: int
    is_quoted: bool = False
    is_cookie: bool = False
    """True for a list of cookies: names and values."""


def named_values_in(text: str, is_secret_name: Callable[[str], bool]) -> Iterator[NamedValue]:
    """Yield the values that are secret by their name."""
    done = masked = 0
    word = _Word(0, -1, "")
    for one in _NAMED.finditer(text):
        if one.start() < done or not (one[5] or one[1]):
            continue
        is_secret = is_secret_name(one[2])
        if not is_secret and not (one[5] and is_secret_parameter(one[2])):
            continue
        if _COOKIE.fullmatch(one[2]) and (line := _UNQUOTED.match(text, one.end())):
            yield NamedValue(*line.span(), is_cookie=True)
            done = line.end()
        elif quoted := _QUOTED.match(text, one.end()):
            if is_secret or _is_token(text, *quoted.span(3)):
                yield NamedValue(*quoted.span(3), is_quoted=True)
        else:
            scheme = _SCHEME_BEFORE.match(text, one.end())
            start = scheme.end() if scheme else one.end()
            word = word if start < word.end else _Word.at(text, start)
            is_secret = is_secret or _is_token(text, start, word.end)
            is_new = masked <= start < word.end
            if is_secret and is_new and _is_value(one, text, start, word):
                yield NamedValue(start, word.end)
                masked = word.end
    done = 0
    for one in _ELEMENT.finditer(text):
        if one.start() < done or not is_secret_name(one[1]):
            continue
        start, end = one.span(2)
        if start < 0:  # in a CDATA section
            start, end = one.end(), text.find("]]>", one.end())
            done = end = end if end >= 0 else len(text)
        yield NamedValue(start, end)
    for tag in _TAG.finditer(text):
        name = _NAME_IN_TAG.search(text, *tag.span())
        value = _VALUE_IN_TAG.search(text, *tag.span()) if name else None
        if name and value and is_secret_name(name[1]):
            yield NamedValue(*value.span(1))
    for one in _PROSE.finditer(text):
        if _is_random(one[1]) and any(char.isalpha() for char in one[1]):
            yield NamedValue(*one.span(1))


def _is_value(name: re.Match[str], text: str, start: int, word: _Word) -> bool:
    if word.following == "(" or _SHELL_VARIABLE.fullmatch(text, start, word.end):
        return False
    is_random = word.end - start >= _SHORTEST_RANDOM and word.last_digit >= start
    is_tight = name[5] == "=" and not name[4] and not name[6]
    last = text[max(start, word.end - len(name[2])) : word.end]
    is_code = word.following == "[" or _is_same_name(last, name[2])
    return is_random or (is_tight and not is_code)


def _is_random(value: str) -> bool:
    """Tell whether a value looks like a secret rather than a word."""
    return len(value) >= _SHORTEST_RANDOM and has_digit(value)


def _is_token(text: str, start: int, end: int) -> bool:
    """Tell whether the value of a name that is not always secret, like ``key``, is a token."""
    found = _TOKEN.match(text, start, end)
    return found is not None and has_digit(found[0]) and _LETTER.search(found[0]) is not None


def _is_same_name(value: str, name: str) -> bool:
    """Tell whether a value is a variable: ``token=token``, ``password=args.password``."""
    return value.lower().replace("-", "_") == name.lower().replace("-", "_")


_MOST_UNPACKED = 16 * 1024 * 1024
_CHARSET = re.compile(r"charset=\"?([\w-]{1,40})", re.I)


def problem_in_text(text: str, content_type: str) -> str | None:
    """Return why bytes cannot be read as text, or None."""
    charset = _CHARSET.search(content_type)
    if charset and charset[1].lower() not in READABLE:
        return f"text in the charset {charset[1]}"
    if "\0" in text:
        return "binary data"
    try:
        text.encode("latin-1").decode()
    except ValueError:
        return None if charset and charset[1].lower() in ("iso-8859-1", "latin1") else "binary data"
    return None


def decode_base64(text: str) -> bytes | None:
    compact = re.sub(r"[\r\n=]", "", text).translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def readable(data: bytes) -> tuple[str, bool]:
    """Return bytes as text, unpacked if they are packed, and whether all of it could be read."""
    if data[:2] == b"\x1f\x8b" or data[:2] in (b"x\x9c", b"x\x01", b"x\xda"):
        with suppress(zlib.error):
            data = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, _MOST_UNPACKED)
    if len(data) % 2 == 0 and data[1::2].count(0) * 10 > len(data) * 4:
        with suppress(ValueError):  # as PowerShell encodes commands
            data = data.decode("utf-16-le").encode()
    text = data.decode("latin-1")
    return text, problem_in_text(text, "") is None


def is_private_key(data: bytes) -> bool:
    """Tell whether bytes are a private key, or a store of keys, without text around them."""
    if data.startswith((b"openssh-key-v1\0", b"\xfe\xed\xfe\xed", b"PuTTY-User-Key-File")):
        return True
    # A DER sequence that begins with a version: PKCS#1, PKCS#8, SEC 1 and PKCS#12.
    return (
        re.match(
            rb"\x30(?:[\x00-\x7f]|\x81.|\x82..|\x83...)\x02\x01[\x00\x01\x03][\x02\x04\x30]",
            data,
            re.DOTALL,
        )
        is not None
    )


MASK = "[secret]"
_DEEPEST = 12  # levels of texts within texts
_PUBLIC_USERS = ("git", "anonymous")
_LEAST_BINARY = 64  # bytes; shorter ones are probably numbers or names
_LEAST = 4  # characters; a shorter text cannot contain a secret

_FORM = re.compile(
    r"[^\s=&{}<>\"]{1,200}=[^\s&{}<>\"]*+(?:&[^\s=&{}<>\"]{1,200}+(?:=[^\s&{}<>\"]*+)?)*+"
)
_FIELD = re.compile(r"([^=&]*+)(?:=([^&]*+))?&?")
_PARAMETER = re.compile(r"[?&#;]([A-Za-z0-9_.~%\[\]-]{1,100})=([^&#\s\"'<>\\]++)")
_USERINFO = re.compile(r"(:?)//([^\s/?#\"'<>\\@]{1,500}@)+")
_COOKIE_PAIR = re.compile(r"(?:(?<=^)|(?<=[;,]))(\s*[^=;,\s]+=)([^;]*)")
_COOKIE_PIECE = re.compile(r"[^\s;](?:[^;]*[^\s;])?")
_FLAGS = frozenset({"secure", "httponly", "partitioned"})
_ATTRIBUTES = re.compile(r"\s*(?:expires|max-age|domain|path|samesite|priority)=", re.I)
_SCHEME = re.compile(
    r"(?:basic|bearer|digest|dpop|token|apikey|negotiate|ntlm|oauth|hawk|hoba|mutual|vapid|jwt"
    r"|key|aws4-hmac-sha256|privatetoken|scram-sha-[0-9]+)[ ]+",
    re.I,
)
_LINE = re.compile(r"[^\r\n]+(?:\r\n?|\n)?|\r\n?|\n")
_EVENT = re.compile(r"\s*(?:data|event|id|retry|):")
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]{24,}={0,2}|[A-Za-z0-9_-]{40,}={0,2}")
_BOUNDARY = re.compile(r"boundary=\"?([^\";,\s]{1,200})", re.I)
_DISPOSITION_NAME = re.compile(
    r"[;\s]name\*?\s{0,9}=\s{0,9}(?:\"([^\"]*)|'([^']*)|([^\";\s]*))", re.I
)
_BLANK_LINE = re.compile(r"\r?\n\r?\n")
_FOLDED = re.compile(r"\r?\n(?=[ \t])")
_IN_HEADER = re.compile(r"=\?base64\?([A-Za-z0-9+/_=-]*)\?=", re.I)  # as MCP writes a name
_DATA_URI = re.compile(r";base64,([A-Za-z0-9+/_=-]{8,})", re.I)
_SEGMENT = re.compile(r"[^/]+")
_MOST_ESCAPES = 3  # percent escapes within each other


class _Streamed:
    """What events say at the same place, one after the other: clients put it together."""

    def __init__(self) -> None:
        self._places: dict[int, list[View]] = {}

    def add(self, data: View) -> None:
        """Take the data of the next event."""
        if data.text[:1] not in ("{", "["):
            self._places.setdefault(0, []).append(data)
            return
        for place in places_in(data, lambda _name: False):
            if place.path is not None:
                self._places.setdefault(place.path, []).append(unescape_json(place.view))

    def texts(self) -> Iterator[list[View]]:
        """Yield the parts of each text that came in several events."""
        return (parts for parts in self._places.values() if len(parts) > 1)


@dataclass(frozen=True, slots=True)
class SecretFinder:
    """Finds secrets by name and shape, and further ones that the caller names."""

    fields: frozenset[str] = frozenset()
    """More names of JSON members, form fields and parameters, in lower case."""
    headers: frozenset[str] = frozenset()
    """More headers, in lower case."""
    known: tuple[str, ...] = ()
    """Texts that are secret everywhere."""

    # Entries

    def in_text(self, text: str) -> Findings:
        return self._found(View.of(text), lambda view, found: self._text(view, found, 0))

    def in_url(self, text: str) -> Findings:
        """Find the secrets in a URL, or in a part of one: a path, or a host with userinfo."""

        def read(view: View, found: Findings) -> None:
            self._plain(view, found, 0)
            at = view.text.find("@")
            for one in _SEGMENT.finditer(re.split("[?#]", view.text, maxsplit=1)[0]):
                if looks_secret(one[0]):
                    found.mark(view, *one.span())
            if "://" not in view.text and 0 < at < len(re.split("[/?#]", view.text)[0]):
                self._userinfo(view.part(0, at), found)

        return self._found(View.of(text), read)

    def under_name(self, name: str, text: str) -> Findings:
        """Find the secrets in the value of a name, as in a JSON object."""

        def read(view: View, found: Findings) -> None:
            if self._is_name(name):
                found.mark(view)
            else:
                self._text(view, found, 0)

        return self._found(View.of(text), read)

    def in_header(self, name: str, value: str) -> Findings:
        return self._found(
            View.of(value), lambda view, found: self._header(name.lower(), view, found)
        )

    def in_body(self, body: bytes, content_type: str) -> Findings:
        view = View.of(body.decode("latin-1"))
        return self._found(view, lambda view, found: self._body(view, content_type, found, 0))

    def _found(self, view: View, read: Callable[[View, Findings], None]) -> Findings:
        found = Findings()
        read(view, found)
        self._known(view, found)
        return found.sorted()

    # Headers

    def _header(self, name: str, view: View, found: Findings) -> None:
        if name in ("cookie", "set-cookie"):
            self._cookies(view, found)
        elif name in self.headers or is_secret_header(name):
            self._credential(view, found)
        elif name == "sec-websocket-protocol":
            self._plain(view, found, 0)
            for item in re.finditer(r"[^\s,]+", view.text):
                if len(item[0]) >= 20 and re.search(r"[0-9]", item[0]):
                    found.mark(view, item.start() + item[0].rfind(".") + 1, item.end())
        else:
            for one in _IN_HEADER.finditer(view.text):
                self._base64(view.part(*one.span(1)), found, 0)
            self._text(view, found, 0)

    def _credential(self, view: View, found: Findings) -> None:
        scheme = _SCHEME.match(view.text)
        start = scheme.end() if scheme else 0
        found.mark(view, start)
        if scheme and scheme[0].lower().startswith("basic"):
            found.related += basic_parts(view.text[start:].strip())

    def _cookies(self, view: View, found: Findings) -> None:
        for pair in _COOKIE_PAIR.finditer(view.text):
            if not _ATTRIBUTES.match(pair[1]):
                found.mark(view, *pair.span(2))
        for piece in _COOKIE_PIECE.finditer(view.text):  # a cookie may have an odd name or none
            if not _COOKIE_PAIR.search(piece[0]) and piece[0].strip().lower() not in _FLAGS:
                found.mark(view, *piece.span())

    # Bodies

    def _body(self, view: View, content_type: str, found: Findings, depth: int) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        if kind.startswith("multipart/") and (boundary := _BOUNDARY.search(content_type)):
            self._multipart(view, boundary[1], found, depth)
            return
        if problem := problem_in_text(view.text, content_type):
            found.unread.append(problem)
            self._plain(view, found, depth)
        elif kind == "application/x-www-form-urlencoded":
            self._form(view, found, depth)
        elif kind == EVENT_STREAM:
            self._events(view, found, depth)
        else:
            self._text(view, found, depth)

    def _multipart(self, view: View, boundary: str, found: Findings, depth: int) -> None:
        text, delimiter = view.text, "--" + boundary
        starts = [one.start() for one in re.finditer(re.escape(delimiter), text)]
        if not starts or depth > _DEEPEST:
            found.unread.append("multipart without its boundary")
            self._text(view, found, depth)
            return
        self._text(view.part(0, starts[0]), found, depth + 1)
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            self._part(view.part(start + len(delimiter), end), found, depth + 1)

    def _part(self, view: View, found: Findings, depth: int) -> None:
        blank = _BLANK_LINE.search(view.text)
        if blank is None:  # the end, and what follows it
            self._text(view, found, depth)
            return
        content_type = ""
        names: list[str] = []
        lines = _FOLDED.sub(lambda end: " " * len(end[0]), view.text[: blank.start()])
        for line in re.finditer(r"[^\r\n]+", lines):
            key, colon, value = line[0].partition(":")
            start = line.start() + len(key + colon)
            self._header(key.strip().lower(), view.part(start, line.end()), found)
            if key.strip().lower() == "content-type":
                content_type = value.strip()
            elif key.strip().lower() == "content-disposition":
                names += map(_name_in, _DISPOSITION_NAME.finditer(value))
        content = view.part(blank.end(), len(view.text.rstrip("\r\n")))
        if any(map(self._is_parameter, names)):
            found.mark(content)
        else:
            self._body(content, content_type, found, depth)

    def _events(self, view: View, found: Findings, depth: int) -> None:
        data: list[View] = []
        said = _Streamed()
        for line in _LINE.finditer(view.text):
            end = line.start() + len(line[0].rstrip("\r\n"))
            key, colon, value = view.text[line.start() : end].partition(":")
            if key.lstrip("ï»¿") == "data" and colon:
                start = line.start() + len(key) + 1 + value.startswith(" ")
                data.append(view.part(start, end))
                continue
            self._plain(view.part(line.start(), end), found, depth + 1)
            if not line[0].strip("\r\n"):
                self._event_data(data, said, found, depth)
                data = []
        self._event_data(data, said, found, depth)
        for parts in said.texts():
            self._cut_text(parts, found)

    def _event_data(self, data: list[View], said: _Streamed, found: Findings, depth: int) -> None:
        if data:
            whole = data[0] if len(data) == 1 else joined(data)
            said.add(whole)
            self._text(whole, found, depth + 1)

    def _cut_text(self, parts: Sequence[View], found: Findings) -> None:
        """Mark the secrets that begin in one part of a text and end in a later one."""
        whole = "".join(part.text for part in parts)
        starts = [0, *accumulate(len(part.text) for part in parts)]
        for start, end in (*shapes_in(whole), *self._known_in(whole)):
            first, last = bisect_right(starts, start) - 1, bisect_left(starts, end) - 1
            for number in range(first, last + 1) if first < last else ():
                part, before = parts[number], starts[number]
                found.mark(part, max(start - before, 0), min(end - before, len(part.text)))

    # Texts

    def _text(self, view: View, found: Findings, depth: int) -> None:
        """Search a text of unknown type."""
        text = view.text
        if len(text) < _LEAST:
            return
        if depth > _DEEPEST:
            self._plain(view, found, depth)
        elif "data:" in text and _EVENT.match(text) and ("\n" in text or "\r" in text):
            self._events(view, found, depth)
        elif _BASE64.fullmatch(text):
            self._base64(view, found, depth)
        elif "=" in text and _FORM.fullmatch(text) and not _is_uri(text.partition("=")[0]):
            self._form(view, found, depth)
        else:
            done = 0
            for start, end in documents_in(text):
                self._plain(view.part(done, start), found, depth)
                self._json(view.part(start, end), found, depth)
                done = end
            self._plain(view.part(done, len(text)) if done else view, found, depth)

    def _json(self, view: View, found: Findings, depth: int) -> None:
        for place in places_in(view, self._is_name):
            if not place.is_secret:
                inner = unescape_json(place.view)
                self._text(inner, found, depth + 1)
                if inner is not place.view:
                    self._known(inner, found)
            elif place.is_number:
                found.mark_number(place.view)
            else:
                found.mark(unescape_json(place.view))

    def _form(self, view: View, found: Findings, depth: int) -> None:
        for one in _FIELD.finditer(view.text):
            if one[2]:
                value = unescape_percent(view.part(*one.span(2)), plus=True)
                self._parameter(one[1], value, found, depth)

    def _parameter(self, name: str, value: View, found: Findings, depth: int) -> None:
        plain = unescape_percent(View.of(name), plus=True).text
        is_short_code = plain.lower() == "code" and len(value.text) < 6
        if self._is_parameter(plain) and not is_short_code:
            found.mark(value)
        else:
            self._text(value, found, depth + 1)
            self._known(value, found)

    def _base64(self, view: View, found: Findings, depth: int) -> None:
        """Mark a whole base64 text that contains a secret, because its parts cannot be replaced."""
        self._plain(view, found, depth)
        plain = decode_base64(view.text)
        if plain is None:
            return
        if is_private_key(plain):
            found.mark(view)
            return
        inside = Findings()
        text, is_known = readable(plain)
        inner = View.of(text)
        if is_known:
            self._text(inner, inside, depth + 1)
        else:
            self._plain(inner, inside, depth + 1)  # a secret may be written in the middle of it
            if not inside.secrets and len(plain) >= _LEAST_BINARY:
                found.unread.append("binary data in base64")
        self._known(inner, inside)
        if inside.secrets:
            found.mark(view)

    def _plain(self, view: View, found: Findings, depth: int) -> None:
        """Search free text for shapes, URLs, and values with a name."""
        text = view.text
        if len(text) < _LEAST:
            return
        if "=" in text and depth <= _DEEPEST:
            for one in _PARAMETER.finditer(text):
                value = unescape_percent(view.part(*one.span(2)))
                self._parameter(one[1], value, found, depth)
        self._words(view, found, depth)
        for _ in range(_MOST_ESCAPES):
            inner = unescape_percent(view)
            if inner.text == view.text:
                break
            self._words(inner, found, depth)
            self._known(inner, found)
            view = inner

    def _words(self, view: View, found: Findings, depth: int) -> None:
        text = view.text
        for start, end in shapes_in(text):
            found.mark(view, start, end)
        for one in _DATA_URI.finditer(text) if depth <= _DEEPEST else ():
            self._base64(view.part(*one.span(1)), found, depth + 1)
        for one in _USERINFO.finditer(text) if "@" in text else ():
            userinfo = view.part(one.end(1) + 2, one.end() - 1)
            if one[1] or ":" in userinfo.text:
                self._userinfo(userinfo, found)
        for named in named_values_in(text, self._is_name):
            inner = view.part(named.start, named.end)
            if named.is_cookie:
                self._cookies(inner, found)
            else:
                found.mark(unescape_json(inner) if named.is_quoted else inner)

    def _userinfo(self, view: View, found: Findings) -> None:
        if view.text in _PUBLIC_USERS:
            return
        for part in re.finditer(r"[^:]+", view.text):
            found.mark(unescape_percent(view.part(*part.span())))

    def _known(self, view: View, found: Findings) -> None:
        for start, end in self._known_in(view.text):
            found.mark(view, start, end)

    def _known_in(self, text: str) -> Iterator[tuple[int, int]]:
        for secret in self.known:
            at = text.find(secret)
            while at >= 0:
                yield at, at + len(secret)
                at = text.find(secret, at + len(secret))

    def _is_name(self, name: str) -> bool:
        return is_secret_name(name) or name.lower() in self.fields

    def _is_parameter(self, name: str) -> bool:
        return is_secret_parameter(name) or name.lower() in self.fields


def _is_uri(text: str) -> bool:
    return "://" in text or text[:5].lower() == "data:"


def _name_in(said: re.Match[str]) -> str:
    """Return the name of a part, also one that is written as in ``name*=UTF-8''a%20b``."""
    return unquote((said[1] or said[2] or said[3] or "").rpartition("''")[2])


LOOK_AHEAD = 8 * 1024
"""Characters that are read behind the place where a text is cut: a secret may be cut, too."""


def redacted_beginning(text: str, most: int) -> str:
    """Return a text without secrets, cut if it is long.

    ``text`` may be cut itself, but not before ``most + LOOK_AHEAD``: half of a secret is not found.

    >>> redacted_beginning("x Authorization: Bearer 0123456789abcdefghij", 32)
    'x Authorization: Bea…'
    """
    seen = text[: most + LOOK_AHEAD]
    if len(seen) <= most:
        return redact(seen)
    masked = redact(seen)
    return masked[: max(0, len(masked) - (len(seen) - most))][:most] + "…"


def redact(text: str, mask: str = MASK, finder: SecretFinder | None = None) -> str:
    """Return a text with each secret replaced by a mask. JSON stays JSON."""
    raw = text.encode("utf-8", "surrogatepass").decode("latin-1")
    found = (finder or SecretFinder()).in_text(raw).secrets
    masked = replace(raw, found, lambda one: "0" if one.is_number else mask)
    return masked.encode("latin-1").decode("utf-8", "replace")
