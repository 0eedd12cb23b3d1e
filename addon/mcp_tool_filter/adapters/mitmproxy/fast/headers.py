"""mitmproxy's headers, with an index.

A request's headers are asked some sixty times on its way, and mitmproxy converts each name of them
for each question, through five functions. Here they are converted once, for as long as they stay
what they are. The answers are the same.

Internals of mitmproxy that are used: ``Headers`` keeps its fields as pairs of bytes, in a tuple
that is replaced and never changed, and compares their names in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

from mitmproxy.http import Headers

type _Fields = tuple[tuple[bytes, bytes], ...]
type _Index = dict[bytes, list[bytes]]

_NONE: Sequence[bytes] = ()
_LONGEST_KNOWN = 64  # characters of a name
_MOST_KNOWN = 256
_known: dict[str | bytes, bytes] = {}
"""What a name is compared by. What is asked for is mostly one of a few."""


def install_quick_headers() -> None:
    """Answer all header look-ups of this process this way."""
    # Any: for mypy a method is not for assigning. The tests hold each against mitmproxy's own.
    patched: Any = Headers
    patched.indexed = None  # the fields that the index is of
    patched.get_all = get_all
    patched.set_all = set_all
    patched.get = get
    patched.pop = pop
    patched.__contains__ = contains


def get_all(headers: Headers, name: str | bytes) -> list[str]:
    return [value.decode("utf-8", "surrogateescape") for value in _values(headers, name)]


def get[T](headers: Headers, name: str | bytes, default: T | None = None) -> str | T | None:
    if not (values := _values(headers, name)):
        return default
    if len(values) == 1:
        return values[0].decode("utf-8", "surrogateescape")
    return ", ".join(get_all(headers, name))


def contains(headers: Headers, name: str | bytes) -> bool:
    return _values(headers, name) is not _NONE


def pop(headers: Headers, name: str | bytes, *default: object) -> object:
    if default and _values(headers, name) is _NONE:
        return default[0]
    return MutableMapping.pop(headers, name, *default)


def set_all(headers: Headers, name: str | bytes, values: Iterable[str | bytes]) -> None:
    first = _bytes(name)
    rest = [_bytes(value) for value in values]
    there = _values(headers, name)
    if there == rest:
        return
    if not there:
        headers.fields = (*headers.fields, *((first, value) for value in rest))
        return
    key = first.lower()
    fields = []
    for field in headers.fields:
        if field[0].lower() != key:
            fields.append(field)
        elif rest:
            fields.append((field[0], rest.pop(0)))
    headers.fields = (*fields, *((first, value) for value in rest))


def _values(headers: Headers, name: str | bytes) -> Sequence[bytes]:
    return _index_of(headers).get(_known.get(name) or _key(name), _NONE)


def _index_of(headers: Headers) -> _Index:
    asked: Any = headers
    if asked.indexed is not asked.fields:
        asked.index = _index(asked.fields)
        asked.indexed = asked.fields if type(asked.fields) is tuple else None  # a script's list
    index: _Index = asked.index
    return index


def _index(fields: _Fields) -> _Index:
    index: _Index = {}
    for name, value in fields:
        key = name.lower()
        if key in index:
            index[key].append(value)
        else:
            index[key] = [value]
    return index


def _key(name: str | bytes) -> bytes:
    key = _bytes(name).lower()
    if len(name) <= _LONGEST_KNOWN and len(_known) < _MOST_KNOWN:
        _known[name] = key
    return key


def _bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    return text.encode("utf-8", "surrogateescape")
