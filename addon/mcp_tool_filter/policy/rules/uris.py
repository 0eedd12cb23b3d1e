r"""Find out which file or URL a resource's URI means, and whether it is inside an allowed place.

>>> [is_inside(parse_uri(uri), parse_entry("/workspace")) for uri in (
...     "file:///workspace/a", "file:///workspace/%2e%2e/etc", "file:///workspace-evil")]
[True, False, False]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote

# RFC 3986, appendix B, with a required scheme.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
_MOST_ROUNDS = 5
_HERE = frozenset({"", "localhost"})


class UnclearUri(Exception):
    """A URI that cannot be judged."""


@dataclass(frozen=True, slots=True)
class ResourceUri:
    """A parsed URI; ``others`` are more paths that some reader could understand."""

    scheme: str
    host: str
    parts: tuple[str, ...]
    others: tuple[tuple[str, ...], ...] = ()

    @property
    def readings(self) -> tuple[tuple[str, ...], ...]:
        return (self.parts, *self.others)


def parse_uri(text: str) -> ResourceUri:
    """Parse a resource's URI like the most lenient server. Raises UnclearUri."""
    found = _URI.fullmatch(text.replace("\\", "/"))
    if found is None:
        raise UnclearUri("not an absolute URI")
    if _CONTROL.search(text):
        raise UnclearUri("a control character")
    scheme, host = found[1].lower(), _decoded(found[2] or "").lower()
    if scheme == "file":
        if host not in _HERE:
            raise UnclearUri("a file on another host")
        if not found[3].startswith("/") and not _decoded(found[3]).startswith("/"):
            raise UnclearUri("a relative path")
        host = ""
    rest = (found[4] or "") + (found[5] or "")
    others: tuple[tuple[str, ...], ...] = ()
    if ".." in _decoded(rest):  # a server that does not know queries would follow it
        others = (_resolved(_decoded(found[3] + rest)),)
    return ResourceUri(scheme, host, _resolved(_decoded(found[3])), others)


def parse_entry(text: str) -> ResourceUri:
    """Parse an allowed place: a path, or a URI. Raises ValueError."""
    try:
        return parse_uri(f"file://{text}" if text.startswith("/") else text)
    except UnclearUri:
        raise ValueError(
            "expected a path that begins with /, or a URI such as https://host/folder"
        ) from None


def is_inside(uri: ResourceUri, place: ResourceUri) -> bool:
    """Tell whether a resource is the place, or below it."""
    return (uri.scheme, uri.host) == (place.scheme, place.host) and all(
        parts[: len(place.parts)] == place.parts for parts in uri.readings
    )


def matches_glob(uri: ResourceUri, glob: str) -> bool:
    """Tell whether a glob fits the whole path or its last part, ignoring case."""
    wanted = glob.casefold()
    readings = uri.readings
    if uri.scheme == "file":
        readings += tuple(tuple(map(_read_by_windows, parts)) for parts in readings)
    for parts in readings:
        path = "/" + "/".join(parts)
        for text in (path, path[1:], parts[-1] if parts else ""):
            if fnmatchcase(text.casefold(), wanted):
                return True
    return False


def _read_by_windows(part: str) -> str:
    """Return which file Windows opens: it drops dots and spaces at the end, and ``::$DATA``.

    >>> _read_by_windows("a.key. "), _read_by_windows("a.key::$DATA")
    ('a.key', 'a.key')
    """
    return part.partition(":")[0].rstrip(" .") or part


def _decoded(text: str) -> str:
    """Decode escapes until nothing changes."""
    for _ in range(_MOST_ROUNDS + 1):
        try:
            plain = unquote(text, errors="strict").replace("\\", "/")
        except UnicodeDecodeError:
            raise UnclearUri("not UTF-8") from None
        if plain == text:
            break
        text = plain
    else:
        raise UnclearUri(f"escaped more than {_MOST_ROUNDS} times")
    if _CONTROL.search(text):
        raise UnclearUri("a control character")
    return text


def _resolved(path: str) -> tuple[str, ...]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part not in ("", "."):
            if not part.strip(" ."):  # Windows could take it for "." or ".."
                raise UnclearUri("a part of dots and spaces")
            parts.append(part)
    return tuple(parts)
