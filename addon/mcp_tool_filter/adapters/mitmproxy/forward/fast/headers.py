"""Give mitmproxy's headers an index.

A request's headers are looked up about sixty times, and each time mitmproxy converts every name,
through five functions. Here we convert the names once, until the headers change. Also, mitmproxy
computes the length of a body seven times; here we do it once per head. The results are the same.

We use these internals of mitmproxy: ``Headers`` keeps its fields as pairs of bytes, in a tuple that
is replaced and never changed, and compares names in lower case; and the length of a body depends on
the fields of its head, the request's method and the response's status.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from mitmproxy.http import Headers, Request, Response
from mitmproxy.net.http import http1
from mitmproxy.net.http.http1.read import expected_http_body_size
from mitmproxy.proxy.layers import http as http_layer

type _Fields = tuple[tuple[bytes, bytes], ...]
type _Index = dict[bytes, list[bytes]]

_LONGEST_KNOWN = 64  # characters of a name
_MOST_KNOWN = 256
_OF_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
_UNKNOWN: Any = object()


class _Known(dict[str | bytes, bytes]):
    """The normalised form of each name. Most look-ups use one of a few names."""

    def __missing__(self, name: str | bytes) -> bytes:
        key = _bytes(name).lower()
        if len(name) <= _LONGEST_KNOWN and len(self) < _MOST_KNOWN:
            self[name] = key
        return key


_known = _Known()


def install_quick_headers() -> None:
    """Use this index for all header look-ups of this process."""
    # Any: mypy does not allow assigning to methods. The tests compare each with mitmproxy's own.
    patched: Any = Headers
    patched.indexed = None  # the fields that the index was made from
    patched.get_all = get_all
    patched.set_all = set_all
    patched.get = get
    patched.pop = pop
    patched.__contains__ = contains
    for module in (http1, http_layer):
        patched = module
        patched.expected_http_body_size = body_size


def get_all(headers: Headers, name: str | bytes) -> list[str]:
    values = _index_of(headers).get(_known[name])
    if values is None:
        return []
    return [value.decode("utf-8", "surrogateescape") for value in values]


def get[T](headers: Any, name: str | bytes, default: T | None = None) -> str | T | None:
    if headers.indexed is not headers.fields:  # inlined _index_of: this is the hottest call
        _index_anew(headers)
    values = headers.index.get(_known[name])
    if values is None:
        return default
    if len(values) == 1:
        value: str = values[0].decode("utf-8", "surrogateescape")
        return value
    return ", ".join(get_all(headers, name))


def contains(headers: Headers, name: str | bytes) -> bool:
    return _known[name] in _index_of(headers)


def pop(headers: Headers, name: str | bytes, *default: object) -> object:
    if default and not contains(headers, name):
        return default[0]
    return MutableMapping.pop(headers, name, *default)


def set_all(headers: Any, name: str | bytes, values: Iterable[str | bytes]) -> None:
    first = _bytes(name)
    wanted = [_bytes(value) for value in values]
    index = _index_of(headers)
    key = first.lower()
    there = index.get(key, [])
    if there == wanted:
        return
    if there:
        headers.fields = _with(headers.fields, first, key, wanted)
    else:
        headers.fields = (*headers.fields, *[(first, value) for value in wanted])
    if headers.indexed is not None:  # replace the index, never change it: copies may share it
        headers.index = {**index, key: wanted} if wanted else _without(index, key)
        headers.indexed = headers.fields
        if key in _OF_LENGTHS:
            headers.sizes = {}


def _with(fields: _Fields, name: bytes, key: bytes, values: list[bytes]) -> _Fields:
    """Return the fields with new values for an existing name."""
    rest = values.copy()
    changed = []
    for field in fields:
        if field[0].lower() != key:
            changed.append(field)
        elif rest:
            changed.append((field[0], rest.pop(0)))
    return (*changed, *((name, value) for value in rest))


def _without(index: _Index, key: bytes) -> _Index:
    return {other: values for other, values in index.items() if other != key}


def body_size(request: Request, response: Response | None = None) -> int | None:
    """Return what mitmproxy's ``expected_http_body_size`` returns, or raise what it raises."""
    headers: Any
    if response is None:
        headers, asked = request.data.headers, None
    else:
        headers, asked = response.data.headers, (request.data.method, response.data.status_code)
    if headers.indexed is not headers.fields:
        _index_anew(headers)
    size: int | None = headers.sizes.get(asked, _UNKNOWN)
    if size is _UNKNOWN:
        size = headers.sizes[asked] = expected_http_body_size(request, response)
    return size


def _index_of(headers: Any) -> _Index:
    if headers.indexed is not headers.fields:
        _index_anew(headers)
    index: _Index = headers.index
    return index


def _index_anew(headers: Any) -> None:
    index: _Index = {}
    for name, value in headers.fields:
        key = name.lower()
        if key in index:
            index[key].append(value)
        else:
            index[key] = [value]
    headers.index = index
    headers.sizes = {}
    headers.indexed = headers.fields if type(headers.fields) is tuple else None  # a script's list


def _bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    return text.encode("utf-8", "surrogateescape")
