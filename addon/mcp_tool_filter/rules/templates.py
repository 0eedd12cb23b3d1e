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
from dataclasses import dataclass, field
from difflib import get_close_matches
from urllib.parse import quote as urlquote

from mcp_tool_filter.protocol.scan import Value
from mcp_tool_filter.rules.fields import (
    Every,
    Field,
    Json,
    Number,
    Object,
    hash_params,
    parse_field,
    quote,
    render_json,
)
from mcp_tool_filter.rules.subject import Subject

_PLAIN = ("session_id", "method", "id", "tool", "params_hash", "rule", "credential")
_PARTS = ("params", "result")
_PIECE = re.compile(r"\$\$|\$\{(?P<name>[^}]*)(?P<end>\}?)|[^$]+|\$")


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    field: Field | None = None


@dataclass(frozen=True, slots=True)
class Template:
    parts: tuple[str | Variable, ...]
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    """The names of its variables."""

    def __post_init__(self) -> None:
        names = frozenset(one.name for one in self.parts if isinstance(one, Variable))
        object.__setattr__(self, "names", names)

    def render(
        self, subject: Subject, rule: str, credential: str, write: Callable[[str], str] = str
    ) -> str:
        """Return the text for a message. Raises Unjudgeable if a field cannot be judged.

        ``write`` renders the inserted values.
        """
        return "".join([
            part if isinstance(part, str) else write(_expand(part, subject, rule, credential))
            for part in self.parts
        ])  # fmt: skip


def in_url(text: str) -> str:
    """Escape a value, so that it stays one part of a URL's path or query, whoever chose it.

    Receivers resolve ``..`` even if it is escaped, so dots alone are escaped twice.

    >>> in_url("tools/call?a b@c"), in_url("..")
    ('tools%2Fcall%3Fa%20b%40c', '%252E%252E')
    """
    if not text.strip("."):
        return "%252E" * len(text)
    return urlquote(text, safe="", errors="replace")


def parse_template(text: str) -> Template:
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
    return Template(tuple(parts))


def _variable(name: str) -> Variable:
    if name in _PLAIN:
        return Variable(name)
    part, dot, path = name.partition(".")
    if part in _PARTS and dot:
        return Variable(part, parse_field(path))
    if part in _PARTS:
        raise ValueError(f"${{{name}}} needs a field, for example ${{{name}.name}}")
    known = [*_PLAIN, *(f"{part}.FIELD" for part in _PARTS)]
    close = get_close_matches(name, known, n=1)
    advice = f"did you mean ${{{close[0]}}}?" if close else f"there are {', '.join(known)}"
    raise ValueError(f"there is no variable ${{{name}}}; {advice}")


def _expand(variable: Variable, subject: Subject, rule: str, credential: str) -> str:
    match variable.name:
        case "session_id":
            return subject.about.session_id
        case "method":
            return subject.method or ""
        case "id":
            return _bare_id(subject)
        case "tool":
            return subject.tool or ""
        case "params_hash":
            return hash_params(subject.document("params"), subject.part("params"))
        case "rule":
            return rule
        case "credential":
            return credential
        case part:
            assert variable.field
            return _field_text(subject, part, variable.field)


def _bare_id(subject: Subject) -> str:
    """Return the id; a string without its quotes."""
    written = subject.id or ""
    return str(json.loads(written)) if written.startswith('"') else written


def _field_text(subject: Subject, part: str, field: Field) -> str:
    found = subject.find(part, field)
    document = subject.document(part)

    def shown(value: Value) -> str:
        return value.text if value.text is not None else document.written(value)

    if Every.EVERY in field.steps:  # all values: the result must not depend on the order of a list
        return f"[{','.join(map(document.written, found))}]" if found else ""
    return shown(found[0]) if found else ""


@dataclass(frozen=True, slots=True)
class JsonTemplate:
    """A JSON value whose strings are templates."""

    parts: tuple[str | Template, ...]
    names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inner = (one.names for one in self.parts if isinstance(one, Template))
        object.__setattr__(self, "names", frozenset[str]().union(*inner))

    def render(
        self, subject: Subject, rule: str, credential: str, write: Callable[[str], str] = str
    ) -> str:
        return "".join([
            part if isinstance(part, str) else quote(part.render(subject, rule, credential, write))
            for part in self.parts
        ])  # fmt: skip


def parse_json_template(value: Json) -> JsonTemplate:
    """Parse the strings of a value as templates. Raises ValueError."""
    return JsonTemplate(tuple(_json_parts(value)))


def _json_parts(value: Json) -> Iterator[str | Template]:
    match value:
        case str():
            yield parse_template(value)
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
        case None | bool() | Number():
            yield render_json(value)
