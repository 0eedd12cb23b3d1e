"""Read which file, URL or skill a resource's URI could mean to a server.

Servers read one URI differently: they resolve ``..`` before or after they decode, decode once or
twice, and take a backslash for a separator or a letter. We follow every such reading. A URI is
inside a place only if all its readings are, and a glob or a pattern denies it if one of them
matches.

>>> [is_inside(parse_uri(uri), parse_entry("/workspace")) for uri in (
...     "file:///workspace/a", "file:///workspace/%2e%2e/etc", "file:///workspace-evil")]
[True, False, False]
>>> spellings_of("FILE:///etc/%70asswd")
('FILE:///etc/%70asswd', 'FILE:///etc/passwd', 'file:///etc/passwd')
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from unicodedata import category, combining, normalize
from urllib.parse import unquote

from jsregex.cost import Budget, TooCostly
from mcp_tool_filter.core.messages.sizes import URI

# RFC 3986, appendix B, with a required scheme.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
_ESCAPED_DOT = re.compile("%2e", re.IGNORECASE)
_ESCAPED_SLASH = re.compile("(%2f)", re.IGNORECASE)
_PATH_PARAM = re.compile(r";[^/]*")
_MOST_ROUNDS = 5
_MOST_READINGS = 200
FOR_A_URI = 500_000
"""Steps for all spellings of a URI together, and for the patterns that read them: about 25 ms."""
_QUICK = 2_000  # short texts that patterns may read without counting their steps
_LONGEST_HOST = 253  # characters of a name in DNS
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


class Work(Budget):
    """What may be spent on a URI."""

    def __init__(self, steps: int = FOR_A_URI) -> None:
        super().__init__(steps, _QUICK)

    def read(self, text: str, times: int = 1) -> None:
        """Note that a text is read so many times. Raises UnclearUri if that is too much."""
        try:
            self.spend(times * (len(text) + _STEPS_OF_CALL))
        except TooCostly:
            raise UnclearUri("too many readings") from None


_STEPS_OF_CALL = 20


def parse_uri(text: str) -> ResourceUri:
    """Parse a resource's URI like the most lenient server. Raises UnclearUri."""
    if len(text) > URI:
        raise UnclearUri("too long")
    work = Work()
    scheme, colon, rest = text.partition(":")
    if "/" not in rest:  # no server takes all the backslashes for letters
        rest = rest.replace("\\", "/")
    found = _URI.fullmatch(scheme + colon + rest)
    if found is None:
        raise UnclearUri("not an absolute URI")
    if _CONTROL.search(text):
        raise UnclearUri("a control character")
    authority, path = found[2] or "", found[3]
    scheme, host, plain = scheme.lower(), _decoded(authority).lower(), _decoded(path)
    if has_many_marks(plain):
        raise UnclearUri("too many marks on one letter")
    if scheme == "file":
        if host not in _HERE:
            raise UnclearUri("a file on another host")
        if not plain.startswith("/"):
            raise UnclearUri("a relative path")
        host = ""
    query = (found[4] or "") + (found[5] or "")
    others = _readings(_paths_in(authority, path, query), work)
    parts = _resolved(plain)
    others.discard(parts)
    return ResourceUri(scheme, host, parts, tuple(sorted(others)))


def _paths_in(authority: str, path: str, query: str) -> list[str]:
    """Return what some server takes for the path."""
    paths = [path]
    if "\\" in authority:  # for browsers the host ends there, for others at the first slash
        paths.append("/" + authority.partition("\\")[2] + path)
    if ".." in _decoded(query):  # a server that does not know queries would follow it
        paths.append(path + query)
    return paths


_PLAIN = re.compile(
    r"(?:file://|(?!file:)[a-z][a-z0-9+.-]*://[a-z0-9-]+(?:\.[a-z0-9-]+)*)"
    r"(?:/[\w~@+=$!(),-](?:[\w.~@+=$!(), -]*[\w~@+=$!(),-])?)+",
    re.ASCII,
)
_LONGEST_SPELLED = 4096  # characters of a URI with escapes, dots or backslashes
_COSTLY = re.compile(r"[%\\]|/\.")
_AT_ENDS = "".join(map(chr, range(33)))  # browsers' URLs drop these
_ENDS_IN_FOLDER = re.compile(r"/\.{0,2}$")
_ON_A_HOST = frozenset({"http", "https", "ws", "wss", "ftp", "file"})
_HOST = re.compile(r"(.*?)\.?(?::[0-9]*)?", re.DOTALL)


def is_costly(text: str) -> bool:
    """Tell whether a URI may have more spellings than one, which take a while to find."""
    return _PLAIN.fullmatch(text) is None or "xn--" in text


def spellings_of(text: str, work: Work | None = None) -> tuple[str, ...]:
    """Return a URI as written, and all that a server could take it for: decoded, with dots
    resolved, the scheme and the host in lower case, with and without its query.

    Raises UnclearUri if there are too many.
    """
    if len(text) > URI:
        raise UnclearUri("too long")
    if not is_costly(text):
        return (text,)  # nearly all
    work = work or Work()
    if len(text) > _LONGEST_SPELLED and _COSTLY.search(text):
        raise UnclearUri("too long")
    work.read(text, _MOST_ROUNDS)
    bare = re.sub(r"[\t\r\n]", "", text.strip(_AT_ENDS))
    whole = _decoded(bare)
    if has_many_marks(whole):
        raise UnclearUri("too many marks on one letter")
    found = dict.fromkeys((text, bare, whole))
    shown = without_invisible(whole)  # an invisible character may have been inside an escape
    for one in dict.fromkeys((bare, whole, shown, _decoded(shown))):
        found |= dict.fromkeys(_spelled(one, work))
    if not whole.isascii():
        for one in found:
            work.read(one, _PRICE_OF_UNICODE)
        found |= dict.fromkeys([normalize("NFC", one) for one in found])
        found |= dict.fromkeys([without_invisible(one) for one in found])
    return tuple(found)


_PRICE_OF_UNICODE = 8  # as slow as reading a text so many times
_MOST_MARKS = 30  # as in Unicode's stream-safe format (UAX 15)
_MANY_MARKS = re.compile(rb"[^\0]{%d}" % (_MOST_MARKS + 1))
# These are marks once they are normalized.
_ALSO_MARKS = dict.fromkeys(map(ord, "\u0f73\u0f75\u0f81\uff9e\uff9f"), "\u0301")


def has_many_marks(text: str) -> bool:
    r"""Tell whether one letter has so many marks that normalizing the text takes quadratic time;
    invisible characters among them do not count.

    >>> has_many_marks("a" + 16 * "\u0301\u0316"), has_many_marks(16 * "a\u0301\u0316")
    (True, False)
    """
    if text.isascii() or len(text) <= _MOST_MARKS:
        return False
    seen = (one for one in text.translate(_ALSO_MARKS) if category(one)[0] != "C")
    return _MANY_MARKS.search(bytes(map(combining, seen))) is not None


def without_invisible(text: str) -> str:
    """Return a text as a server may read it that drops invisible characters and spaces around it,
    and takes characters of other widths for the usual ones.

    >>> without_invisible(" summarize\\u200b ")
    'summarize'
    """
    if text.isascii() and text.isprintable():
        return text.strip()
    kept = (char for char in normalize("NFKC", text) if category(char)[0] != "C")
    return "".join(kept).strip()


def _spelled(text: str, work: Work) -> Iterator[str]:
    work.read(text, _PRICE_OF_READING)
    parsed = _URI.fullmatch(text if "/" in text else text.replace("\\", "/"))
    if parsed is None:  # relative: some servers accept it
        yield from map("/".join, _readings([text], work))
    if text[:1] in ("/", "\\") or (parsed and len(parsed[1]) == 1):
        yield from _spelled(
            f"file:///{text.lstrip('/')}", work
        )  # some only look for file:// and drop it
    if parsed is None:
        return
    scheme, authority, path = parsed[1].lower(), parsed[2] or "", parsed[3]
    query = (parsed[4] or "") + (parsed[5] or "")
    places = _readings(_paths_in(authority, path, query), work)
    has_host = parsed[2] is not None or path.startswith("/")
    hosts = _hosts_in(scheme, authority)
    begins = {f"{scheme}://{host}" for host in hosts}
    work.read(text, len(places) * len(begins))
    bases = {
        f"{begin}{'/' if has_host and parts else ''}{'/'.join(parts)}"
        for parts in _as_on_windows(places)
        for begin in (begins if has_host else (f"{scheme}:",))
    }
    if authority and scheme not in _ON_A_HOST:  # the first part of a path, for many servers
        bases |= _after(
            scheme, _readings([authority + path, *(host + path for host in hosts)], work)
        )
    elif scheme != "file" and not authority:  # or the other way round
        bases |= _after(scheme, places)
        if scheme in _ON_A_HOST and (rest := path.lstrip("/")):
            yield from _spelled(f"{scheme}://{rest}{query}", work)
    elif scheme == "file" and (authority or not has_host):  # below "/", if a server runs there
        places = _readings([authority + path], work) if authority else places
        bases |= _after("file", {("", *parts) for parts in places})
    ends = [""] + (["/"] if _ENDS_IN_FOLDER.search(path) or not path else [])
    ends += [query, parsed[4] or "", _decoded(query)] if query else []
    for base in sorted(bases):
        work.read(base, len(ends))
        yield from (base + end for end in ends)


def _hosts_in(scheme: str, authority: str) -> set[str]:
    """Return what servers take for the host: all of it, or without a user and a port, as written
    or in lower case. Few that read files look at it."""
    whole = _decoded(authority)
    found = _HOST.fullmatch(whole.rpartition("@")[2])
    hosts = {whole, found[1] if found else whole}
    hosts |= {host.lower() for host in hosts}
    if not whole.isascii() or "xn--" in whole.lower():
        named = [host for host in hosts if len(host) <= _LONGEST_HOST]
        hosts |= {form for host in named for form in _internationally(host)}
    if scheme == "file":
        return {""} if hosts <= _HERE else {*hosts, ""}
    return hosts


def _internationally(host: str) -> Iterator[str]:
    """Yield the two forms of a name in DNS, if it is one.

    >>> list(_internationally("b\u00fccher\u3002example"))
    ['xn--bcher-kva.example', 'b\xfccher.example']
    """
    with suppress(UnicodeError):
        ours = host.encode("idna")
        yield ours.decode()
        yield ours.decode("idna")


def _after(scheme: str, places: set[tuple[str, ...]]) -> set[str]:
    return {f"{scheme}://{'/'.join(parts)}" for parts in _as_on_windows(places)}


def _as_on_windows(places: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    return places | {tuple(map(_read_by_windows, parts)) for parts in places}


_SKILL = re.compile(r"\s*skill:|(?:[^?#]*/)?SKILL\.md(?:$|[?#])", re.IGNORECASE)


def is_of_skill(uri: str) -> bool:
    """Tell whether a URI says that it is a file of a skill (SEP-2640).

    >>> [is_of_skill(uri) for uri in ("skill://a/b.py", "git://o/SKILL.md", "file:///skills")]
    [True, True, False]
    """
    return _SKILL.match(uri) is not None


def _readings(paths: list[str], work: Work) -> set[tuple[str, ...]]:
    """Return the places that servers could read in these paths."""
    known = dict.fromkeys(paths)
    waiting = list(known)
    while waiting:
        path = waiting.pop()
        work.read(path, _PRICE_OF_READING)
        if len(known) > _MOST_READINGS:
            raise UnclearUri("too many readings")
        for other in _next_readings(path):
            if other not in known:
                known[other] = None
                waiting.append(other)
    places = set(map(_resolved, known))
    plain = {part: _decoded(part) for part in {part for parts in places for part in parts}}
    return {tuple(plain[part] for part in parts) for parts in places}


_PRICE_OF_READING = 10  # so many ways in which servers read a path


def _next_readings(path: str) -> tuple[str, ...]:
    """Return what one more step of some server makes of a path."""
    kept_slashes = _ESCAPED_SLASH.split(path)
    kept_slashes[::2] = map(unquote, kept_slashes[::2])
    return (
        unquote(path),
        "".join(kept_slashes),
        _ESCAPED_DOT.sub(".", path),
        path.replace("\\", "/"),
        _PATH_PARAM.sub("", path),
        re.split(r"[?#]", path, maxsplit=1)[0],
        *(_without_dots(path, counts_empty=counts) for counts in (False, True)),
    )


def _without_dots(path: str, *, counts_empty: bool) -> str:
    """Resolve ``..`` as a server does before it decodes; browsers' URLs count empty parts."""
    if "/." not in path:
        return path
    parts: list[str] = []
    for part in path.removeprefix("/").split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part != "." and (part or counts_empty):
            parts.append(part)
    return "/" + "/".join(parts)


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
    wanted = _same(glob)
    readings = uri.readings
    if uri.scheme == "file":
        readings += tuple(tuple(map(_read_by_windows, parts)) for parts in readings)
    for parts in readings:
        path = "/" + "/".join(parts)
        for text in (path, path[1:], parts[-1] if parts else ""):
            if fnmatchcase(_same(text), wanted):
                return True
    return False


def _same(text: str) -> str:
    """Return a spelling that is the same for names that some file system takes for one."""
    return text.casefold() if text.isascii() else normalize("NFKC", text).casefold()


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
