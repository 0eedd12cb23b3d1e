r"""Finds secrets in bodies, headers and texts, by parsing them.

JSON is read as JSON, also within a string or an event; forms and URLs as names and values; free
text by what secrets look like. What is found is a place in the outermost text, so that it can be
replaced and nothing else changes:

>>> body = b'{"grant_type":"refresh_token","refresh_token":"r-1","n":"{\\"api_key\\":\\"k-2\\"}"}'
>>> [(one.start, one.value) for one in Finder().in_body(body, "application/json").secrets]
[(47, 'r-1'), (72, 'k-2')]

Texts stand here as Latin-1, one character for each byte, so that places are places of bytes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mcp_tool_filter.observers.redaction import json_places
from mcp_tool_filter.observers.redaction.names import (
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
)
from mcp_tool_filter.observers.redaction.shapes import basic_parts, shapes_in
from mcp_tool_filter.observers.redaction.views import (
    View,
    joined,
    unescape_json,
    unescape_percent,
)

MASK = "[secret]"
_DEEPEST = 12  # texts within texts
_PUBLIC_USERS = ("git", "anonymous")
_LEAST = 4  # characters of a text that could hold a secret

_FORM = re.compile(
    r"[^\s=&{}<>\"]{1,200}=[^\s&{}<>\"]*+(?:&[^\s=&{}<>\"]{1,200}+(?:=[^\s&{}<>\"]*+)?)*+"
)
_FIELD = re.compile(r"([^=&]*+)(?:=([^&]*+))?&?")
_PARAMETER = re.compile(r"[?&#;]([A-Za-z0-9_.~%\[\]-]{1,100})=([^&#\s\"'<>\\]++)")
_USERINFO = re.compile(r"://([^\s/?#\"'<>\\@]{1,500}@)+")
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.])(--?)?([A-Za-z_][A-Za-z0-9_.-]{1,63}+)(\\*[\"'])?"
    r"(?:([ \t]{0,4})(=>?|:)([ \t]{0,4})|([ \t]{1,4}))"
)
_QUOTED = re.compile(r"(\\*)([\"'])((?:(?!\1\2)[^\r\n])*+)")
_PLAIN = re.compile(r"(?:(?:bearer|basic|token|digest) +)?([^\s,;&\"'<>(){}\[\]\\]++)(.?)", re.I)
_COOKIE = re.compile(r"(?:(?<=^)|(?<=[;,]))(\s*[^=;,\s]+=)([^;]*)")
_COOKIE_TEXT = re.compile(r"(?:set-)?cookie", re.I)
_ATTRIBUTES = re.compile(r"\s*(?:expires|max-age|domain|path|samesite|priority)=", re.I)
_SCHEME = re.compile(
    r"(?:basic|bearer|digest|dpop|token|apikey|negotiate|ntlm|oauth|hawk|hoba|mutual|vapid|jwt"
    r"|key|aws4-hmac-sha256|privatetoken|scram-sha-[0-9]+)[ ]+",
    re.I,
)
_PLACEHOLDER = re.compile(r"\$?\{\{?[\w .-]*\}?\}|<[\w -]*>|\*+|\.{3}|null|none|true|false", re.I)
_LINE = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n|$)")
_EVENT = re.compile(r"\s*(?:data|event|id|retry|):")
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]{24,}={0,2}|[A-Za-z0-9_-]{40,}={0,2}")
_BOUNDARY = re.compile(r"boundary=\"?([^\";,\s]{1,200})", re.I)
_DISPOSITION_NAME = re.compile(r"[;\s]name=\"?([^\";\r\n]*)", re.I)
_CHARSET = re.compile(r"charset=\"?([\w-]{1,40})", re.I)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, and its place."""

    start: int
    end: int
    value: str
    """What it means, without any escapes."""
    is_number: bool = False


@dataclass(slots=True)
class Findings:
    """What was found in one text."""

    secrets: list[Secret] = field(default_factory=list)
    related: list[str] = field(default_factory=list)
    """Secrets that stand there in another form, as the password in a Basic credential."""
    unread: list[str] = field(default_factory=list)
    """What could not be read, in words."""

    def mark(self, view: View, start: int = 0, end: int | None = None) -> None:
        """Note a secret; each of its lines for itself, so that what splits lines stays."""
        text = view.text[start : len(view.text) if end is None else end]
        for line in re.finditer(r"[^\r\n]+", text):
            if not _PLACEHOLDER.fullmatch(line[0].strip()):
                raw = view.raw_span(start + line.start(), start + line.end())
                self.secrets.append(Secret(*raw, line[0]))

    def sorted(self) -> Findings:
        """Return the same without overlaps: of two secrets, the outer or the first one."""
        apart: list[Secret] = []
        done = 0
        for one in sorted(self.secrets, key=lambda one: (one.start, -one.end)):
            if one.start >= done and one.end > one.start:
                apart.append(one)
                done = one.end
            elif one.end > done:  # the rest of one that begins within another
                rest = one.value[-(one.end - done) :]
                apart.append(Secret(done, one.end, rest, one.is_number))
                done = one.end
        return Findings(apart, self.related, list(dict.fromkeys(self.unread)))


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds what is secret by name or shape, and what else you say."""

    fields: frozenset[str] = frozenset()
    """Further names of JSON members, form fields and parameters, in lower case."""
    headers: frozenset[str] = frozenset()
    """Further headers, in lower case."""
    known: tuple[str, ...] = ()
    """Texts that are secret wherever they stand."""

    # Entries

    def in_text(self, text: str) -> Findings:
        return self._found(View.of(text), lambda view, found: self._text(view, found, 0))

    def in_url(self, text: str) -> Findings:
        """Find the secrets in a URL, or in a part of one: a path, or a host with userinfo."""

        def read(view: View, found: Findings) -> None:
            self._plain(view, found, 0)
            at = view.text.find("@")
            if "://" not in view.text and 0 < at < len(re.split("[/?#]", view.text)[0]):
                self._userinfo(view.part(0, at), found)

        return self._found(View.of(text), read)

    def under_name(self, name: str, text: str) -> Findings:
        """Find the secrets in a text that stands under a name, as in a JSON object."""

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
            self._text(view, found, 0)

    def _credential(self, view: View, found: Findings) -> None:
        scheme = _SCHEME.match(view.text)
        start = scheme.end() if scheme else 0
        found.mark(view, start)
        if scheme and scheme[0].lower().startswith("basic"):
            found.related += basic_parts(view.text[start:].strip())

    def _cookies(self, view: View, found: Findings) -> None:
        if "=" not in view.text:
            found.mark(view)
        for pair in _COOKIE.finditer(view.text):
            if not _ATTRIBUTES.match(pair[1]):
                found.mark(view, *pair.span(2))

    # Bodies

    def _body(self, view: View, content_type: str, found: Findings, depth: int) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        if kind.startswith("multipart/") and (boundary := _BOUNDARY.search(content_type)):
            self._multipart(view, boundary[1], found, depth)
            return
        if problem := _problem_in_text(view.text, content_type):
            found.unread.append(problem)
            self._plain(view, found, depth)
        elif kind == "application/x-www-form-urlencoded":
            self._form(view, found, depth)
        elif kind == "text/event-stream":
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
        blank = re.search(r"\r?\n\r?\n", view.text)
        if blank is None:  # the end, and what follows it
            self._text(view, found, depth)
            return
        content_type = name = ""
        for line in re.finditer(r"[^\r\n]+", view.text[: blank.start()]):
            key, colon, value = line[0].partition(":")
            start = line.start() + len(key + colon)
            self._header(key.strip().lower(), view.part(start, line.end()), found)
            if key.strip().lower() == "content-type":
                content_type = value.strip()
            elif key.strip().lower() == "content-disposition":
                said = _DISPOSITION_NAME.search(value)
                name = said[1] if said else ""
        content = view.part(blank.end(), len(view.text.rstrip("\r\n")))
        if self._is_parameter(name):
            found.mark(content)
        else:
            self._body(content, content_type, found, depth)

    def _events(self, view: View, found: Findings, depth: int) -> None:
        data: list[View] = []
        for line in _LINE.finditer(view.text):
            end = line.start() + len(line[0].rstrip("\r\n"))
            key, colon, value = view.text[line.start() : end].partition(":")
            if key.lstrip("ï»¿") == "data" and colon:
                start = line.start() + len(key) + 1 + value.startswith(" ")
                data.append(view.part(start, end))
                continue
            self._plain(view.part(line.start(), end), found, depth + 1)
            if not line[0].strip("\r\n"):
                self._event_data(data, found, depth)
                data = []
        self._event_data(data, found, depth)

    def _event_data(self, data: list[View], found: Findings, depth: int) -> None:
        if data:
            self._text(data[0] if len(data) == 1 else joined(data), found, depth + 1)

    # Texts

    def _text(self, view: View, found: Findings, depth: int) -> None:
        """Read a text of which nobody says what it is."""
        text = view.text
        if len(text) < _LEAST:
            return
        if depth > _DEEPEST:
            self._plain(view, found, depth)
        elif "data:" in text and _EVENT.match(text) and ("\n" in text or "\r" in text):
            self._events(view, found, depth)
        elif _BASE64.fullmatch(text):
            self._base64(view, found, depth)
        elif "=" in text and _FORM.fullmatch(text) and "://" not in text.partition("=")[0]:
            self._form(view, found, depth)
        else:
            done = 0
            for start, end in json_places.documents_in(text):
                self._plain(view.part(done, start), found, depth)
                self._json(view.part(start, end), found, depth)
                done = end
            self._plain(view.part(done, len(text)) if done else view, found, depth)

    def _json(self, view: View, found: Findings, depth: int) -> None:
        for place in json_places.places_in(view, self._is_name):
            if not place.is_secret:
                inner = unescape_json(place.view)
                self._text(inner, found, depth + 1)
                if inner is not place.view:
                    self._known(inner, found)
            elif place.is_number:
                found.secrets.append(
                    Secret(*place.view.raw_span(0, len(place.view.text)), place.view.text, True)
                )
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
        """Mask a text in base64 that holds a secret: its parts cannot be replaced alone."""
        self._plain(view, found, depth)
        plain = _decoded(view.text)
        if plain is None:
            return
        inside = Findings()
        inner = View.of(plain.decode("latin-1"))
        if _problem_in_text(inner.text, ""):
            if len(plain) > 256:  # a shorter one is a number or a name more likely than a file
                found.unread.append("binary data in base64")
            return
        self._text(inner, inside, depth + 1)
        self._known(inner, inside)
        if inside.secrets:
            found.mark(view)

    def _plain(self, view: View, found: Findings, depth: int) -> None:
        """Find what stands out in free text: shapes, URLs, and values with a name."""
        text = view.text
        if len(text) < _LEAST:
            return
        for start, end in shapes_in(text):
            found.mark(view, start, end)
        for one in _USERINFO.finditer(text) if "@" in text else ():
            self._userinfo(view.part(one.start() + 3, one.end() - 1), found)
        if "=" in text and depth <= _DEEPEST:
            for one in _PARAMETER.finditer(text):
                value = unescape_percent(view.part(*one.span(2)))
                self._parameter(one[1], value, found, depth)
        for one in _NAMED.finditer(text):
            self._named(view, one, found)

    def _userinfo(self, view: View, found: Findings) -> None:
        if view.text in _PUBLIC_USERS:
            return
        for part in re.finditer(r"[^:]+", view.text):
            found.mark(unescape_percent(view.part(*part.span())))

    def _named(self, view: View, one: re.Match[str], found: Findings) -> None:
        """Mark the value behind ``password=``, ``"token": "…"`` or ``--api-key``."""
        name, is_flag, sign = one[2], bool(one[1]), one[5]
        if not self._is_name(name) or not (sign or is_flag):
            return
        if _COOKIE_TEXT.fullmatch(name):
            line = re.compile(r"[^\r\n\"']*").match(view.text, one.end())
            self._cookies(view.part(*line.span()) if line else view.part(0, 0), found)
        elif quoted := _QUOTED.match(view.text, one.end()):
            found.mark(unescape_json(view.part(*quoted.span(3))))
        elif plain := _PLAIN.match(view.text, one.end()):
            is_tight = sign == "=" and not one[4] and not one[6]
            is_code = plain[2] in ("(", "[") or is_same_name(name, plain[1])
            if (is_tight and not is_code) or (is_random(plain[1]) and plain[2] != "("):
                found.mark(view, *plain.span(1))

    def _known(self, view: View, found: Findings) -> None:
        for secret in self.known:
            at = view.text.find(secret)
            while at >= 0:
                found.mark(view, at, at + len(secret))
                at = view.text.find(secret, at + len(secret))

    def _is_name(self, name: str) -> bool:
        return is_secret_name(name) or name.lower() in self.fields

    def _is_parameter(self, name: str) -> bool:
        return is_secret_parameter(name) or name.lower() in self.fields


def redact(text: str, mask: str = MASK, finder: Finder | None = None) -> str:
    """Return a text of any kind with a mask instead of each secret."""
    raw = text.encode("utf-8", "surrogatepass").decode("latin-1")
    found = (finder or Finder()).in_text(raw).secrets
    return replace(raw, found, lambda _: mask).encode("latin-1").decode("utf-8", "replace")


def redact_header(name: str, value: str, mask: str = MASK) -> str:
    """Return the value of a header with a mask instead of each secret.

    >>> redact_header("Authorization", "Bearer abc")
    'Bearer [secret]'
    """
    return replace(value, Finder().in_header(name, value).secrets, lambda _: mask)


def replace(text: str, secrets: Iterable[Secret], mask: Callable[[Secret], str]) -> str:
    """Return the text with each secret replaced; they do not overlap and are in order."""
    parts: list[str] = []
    done = 0
    for one in secrets:
        parts += [text[done : one.start], mask(one)]
        done = one.end
    return "".join([*parts, text[done:]])


def is_random(value: str) -> bool:
    """Tell a secret from a word, as far as that can be known."""
    return len(value) >= 6 and any(char.isdigit() for char in value)


def is_same_name(name: str, value: str) -> bool:
    """Tell whether a value is only the name again: ``token=token``, ``password=args.password``."""
    return value.lower().replace("-", "_").endswith(name.lower().replace("-", "_"))


def _problem_in_text(text: str, content_type: str) -> str | None:
    """Return why bytes cannot be read as text, or None."""
    charset = _CHARSET.search(content_type)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii", "iso-8859-1", "latin1"):
        return f"text in the charset {charset[1]}"
    if "\0" in text:
        return "binary data"
    try:
        text.encode("latin-1").decode()
    except ValueError:
        return None if charset and charset[1].lower() in ("iso-8859-1", "latin1") else "binary data"
    return None


def _decoded(text: str) -> bytes | None:
    compact = re.sub(r"[\r\n=]", "", text).translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
