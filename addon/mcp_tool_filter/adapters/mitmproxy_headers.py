"""mitmproxy's headers, looked up in one pass.

A request's headers are asked some forty times on its way, and mitmproxy converts each name of them
for each question, through five functions. These here answer the same.

Internals of mitmproxy that are used: ``Headers`` keeps its fields as pairs of bytes, and compares
their names in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from mitmproxy.http import Headers


def install_quick_headers() -> None:
    """Answer all header look-ups of this process this way. (A method is not for assigning.)"""
    Headers.get_all = get_all  # type: ignore[assignment, method-assign]
    Headers.set_all = set_all  # type: ignore[assignment, method-assign]
    Headers.get = get  # type: ignore[method-assign, assignment]
    Headers.pop = pop  # type: ignore[assignment, method-assign]
    Headers.__contains__ = contains  # type: ignore[method-assign, assignment]


def get_all(headers: Headers, name: str | bytes) -> list[str]:
    key = _bytes(name).lower()
    return [
        value.decode("utf-8", "surrogateescape")
        for other, value in headers.fields
        if other.lower() == key
    ]


def get[T](headers: Headers, name: str | bytes, default: T | None = None) -> str | T | None:
    return ", ".join(values) if (values := get_all(headers, name)) else default


def contains(headers: Headers, name: str | bytes) -> bool:
    key = _bytes(name).lower()
    return any(other.lower() == key for other, _ in headers.fields)


def pop(headers: Headers, name: str | bytes, *default: object) -> object:
    if default and not contains(headers, name):
        return default[0]
    return MutableMapping.pop(headers, name, *default)


def set_all(headers: Headers, name: str | bytes, values: Iterable[str | bytes]) -> None:
    first = _bytes(name)
    key = first.lower()
    rest = [_bytes(value) for value in values]
    fields = []
    for field in headers.fields:
        if field[0].lower() != key:
            fields.append(field)
        elif rest:
            fields.append((field[0], rest.pop(0)))
    headers.fields = (*fields, *((first, value) for value in rest))


def _bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    return text.encode("utf-8", "surrogateescape")
