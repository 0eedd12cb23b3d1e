"""Texts with variables: ``"${session_id}:${params.name}"``.

>>> parse_template("costs $$5, or $5: ${tool}").parts
('costs $5, or $5: ', Variable(name='tool', field=None))
>>> parse_template("${toll}")
Traceback (most recent call last):
ValueError: there is no variable ${toll}; did you mean ${tool}?
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote as urlquote
from urllib.parse import urlsplit

from mcp_tool_filter.core.errors import InvalidOption
from mcp_tool_filter.core.http.urls import Origin, parse_origin
from mcp_tool_filter.core.messages.scan import Value
from mcp_tool_filter.rooms.rules.fields import (
    Every,
    Field,
    Json,
    Object,
    hash_params,
    parse_field,
    quote,
    render_json,
)
from mcp_tool_filter.rooms.rules.subject import Subject

_VARIABLES: dict[str, Callable[[Subject, str, str], str]] = {
    "session_id": lambda subject, _rule, _who: subject.about.session_id,
    "method": lambda subject, _rule, _who: subject.method or "",
    "id": lambda subject, _rule, _who: _bare_id(subject.id or ""),
    "tool": lambda subject, _rule, _who: subject.tool or "",
    "params_hash": lambda subject, _rule, _who: hash_params(
        subject.document("params"), subject.part("params")
    ),
    "rule": lambda _subject, rule, _who: rule,
    "credential": lambda _subject, _rule, who: who,
}
_PARTS = ("params", "result")
_PIECE = re.compile(r"\$\$|\$\{(?P<name>[^}]*)(?P<end>\}?)|[^$]+|\$")


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    field: Field | None = None
    """The field of ``params`` or ``result``."""

    def expand(self, subject: Subject, rule: str, credential: str) -> str:
        if self.field is None:
            return _VARIABLES[self.name](subject, rule, credential)
        found, document = subject.find(self.name, self.field), subject.document(self.name)

        def shown(value: Value) -> str:
            return value.text if value.text is not None else document.written(value)

        if Every.EVERY in self.field.steps:  # all: a list's order must not change the result
            return f"[{','.join(map(document.written, found))}]" if found else ""
        return shown(found[0]) if found else ""


@dataclass(frozen=True, slots=True)
class Template:
    parts: tuple[str | Variable, ...]
    write: Callable[[str], str] = str
    """Renders each inserted value."""

    @property
    def names(self) -> frozenset[str]:
        """The names of its variables."""
        return frozenset(part.name for part in self.parts if isinstance(part, Variable))

    def render(self, subject: Subject, rule: str, credential: str) -> str:
        """Return the text for a message. Raises Unjudgeable if a field cannot be judged."""
        return "".join([
            part if isinstance(part, str) else self.write(part.expand(subject, rule, credential))
            for part in self.parts
        ])  # fmt: skip


def templates_in(value: object) -> Iterator[Template]:
    if isinstance(value, Template):
        yield value
    elif isinstance(value, tuple):
        for element in value:
            yield from templates_in(element)


def expanded(value: Any, subject: Subject, rule: str, credential: str) -> Any:
    """Return a value with its templates expanded for a message. Raises Unjudgeable."""
    if isinstance(value, Template):
        return value.render(subject, rule, credential)
    if isinstance(value, tuple):
        return tuple([expanded(element, subject, rule, credential) for element in value])
    return value


def in_url(text: str) -> str:
    """Escape a value, so that it stays one part of a URL's path or query, whoever chose it.

    Receivers resolve ``..`` even if it is escaped, so dots alone are escaped twice.

    >>> in_url("tools/call?a b@c"), in_url("..")
    ('tools%2Fcall%3Fa%20b%40c', '%252E%252E')
    """
    if not text.strip("."):
        return "%252E" * len(text)
    return urlquote(text, safe="", errors="replace")


def in_json(text: str) -> str:
    return quote(text)[1:-1]


def parse_template(text: str, write: Callable[[str], str] = str) -> Template:
    """Parse a template. Raises ValueError for an unknown variable."""
    parts: list[str | Variable] = []
    for found in _PIECE.finditer(text):
        if found["name"] is not None:
            if not found["end"]:
                raise ValueError("${ without its }; write $$ for a dollar")
            parts.append(_variable(found["name"]))
            continue
        plain = "$" if found.group() == "$$" else found.group()
        if parts and isinstance(parts[-1], str):
            parts[-1] += plain
        else:
            parts.append(plain)
    return Template(tuple(parts), write)


def _variable(name: str) -> Variable:
    if name in _VARIABLES:
        return Variable(name)
    part, dot, path = name.partition(".")
    if part in _PARTS and dot:
        return Variable(part, parse_field(path))
    if part in _PARTS:
        raise ValueError(f"${{{name}}} needs a field, for example ${{{name}.name}}")
    known = [*_VARIABLES, *(f"{part}.FIELD" for part in _PARTS)]
    close = get_close_matches(name, known, n=1)
    advice = f"did you mean ${{{close[0]}}}?" if close else f"there are {', '.join(known)}"
    raise ValueError(f"there is no variable ${{{name}}}; {advice}")


def _bare_id(written: str) -> str:
    """Return an id; a string without its quotes."""
    return str(json.loads(written)) if written.startswith('"') else written


def parse_json_template(value: Json) -> Template:
    """Parse the strings of a value as templates. Raises ValueError."""
    return Template(tuple(_json_parts(value)), in_json)


def _json_parts(value: Json) -> Iterator[str | Variable]:
    match value:
        case str():
            yield '"'
            for part in parse_template(value).parts:
                yield in_json(part) if isinstance(part, str) else part
            yield '"'
        case tuple():
            yield "["
            for number, inner in enumerate(value):
                yield "," if number else ""
                yield from _json_parts(inner)
            yield "]"
        case Object(members):
            yield "{"
            for number, (key, inner) in enumerate(members):
                yield f"{',' if number else ''}{quote(key)}:"
                yield from _json_parts(inner)
            yield "}"
        case _:
            yield render_json(value)


def split_url(url: str) -> tuple[Origin, str]:
    """Return a URL's origin and target. Raises ValueError, which says what is wrong.

    >>> split_url("http://localhost:3001/mcp?a")[1]
    '/mcp?a'
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("the URL has characters that are not allowed in a URL")
    try:
        origin = parse_origin(url)
    except InvalidOption as error:
        raise ValueError(error.why) from None
    parts = urlsplit(url)
    return origin, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
