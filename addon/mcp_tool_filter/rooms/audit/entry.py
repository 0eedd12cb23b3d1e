r"""An entry of the audit log about one message, as a JSON object, and its line in the log.

Each line contains the hash of the line before, so that a missing or changed line shows:

>>> first = link(render({"n": 1}), START)
>>> second = link(render({"n": 2}), hash_of(first))
>>> [problem.text for problem in check([first, second])]
[]
>>> [problem.text for problem in check([first.replace(b"1", b"7"), second])]
['the line before was changed, or one is missing']
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import gmtime, strftime

import orjson

type Entry = Mapping[str, object]
"""An entry as its readers see it: anybody may have written to a log. ``entries.AuditLine`` declares
what we write."""


LONGEST_SHOWN = 16 * 1024
"""Characters of arguments or a result that people can look at."""


type Shown = str | Callable[[], str]
"""A text for people, or what finds it once somebody looks at it."""


class ShownEntry(dict[str, object]):
    """An entry with what only people see of its message: this gets into no log and no metric."""

    __slots__ = ("arguments", "client", "problem", "result")

    def __init__(self, entry: Entry, client: str, arguments: Shown | None) -> None:
        super().__init__(entry)
        self.client = client
        """The name that the client gives itself."""
        self.problem = ""
        """The first line of an error's text, without secrets."""
        self.arguments = arguments
        self.result: Shown | None = None
        """As they were written, with secrets, and of a long text ``LOOK_AHEAD`` more than is shown;
        None if nobody asks."""


class LazyValue:
    """A part of an entry that takes time to make; it is made when the entry is written."""

    __slots__ = ("_made", "_make", "size")

    def __init__(self, make: Callable[[], Entry], size: int) -> None:
        self._make: Callable[[], Entry] | None = make
        self._made: Entry = {}
        self.size = size
        """Characters that it keeps in memory."""

    def made(self) -> Entry:
        if make := self._make:
            self._made, self._make = make(), None
        return self._made


def made(part: object) -> object:
    """Return a JSON value for the JSON writer; of anything unexpected too, because a missing line
    would say less."""
    return part.made() if isinstance(part, LazyValue) else repr(part)


def held_by(entry: Entry) -> int:
    """Return the characters of its arguments and result that are not made yet.

    >>> held_by({"arguments": LazyValue(dict, 20), "result": {"bytes": 7}})
    20
    """
    arguments, result = entry.get("arguments"), entry.get("result")
    size = arguments.size if type(arguments) is LazyValue else 0
    return size + result.size if type(result) is LazyValue else size


def milliseconds(seconds: float) -> float:
    """Return a time in milliseconds, cut at microseconds. (``round`` takes ten times as long.)

    >>> milliseconds(0.0123456), milliseconds(-1.0)
    (12.345, 0.0)
    """
    return int(max(0.0, seconds) * 1e6) / 1000


_THOUSANDTHS = tuple(f".{number:03d}Z" for number in range(1000))


class Timestamps:
    """Renders times in UTC. It remembers the last second, because most times are within it.

    >>> Timestamps().write(1763458200.0625)
    '2025-11-18T09:30:00.062Z'
    """

    __slots__ = ("_beginning", "_second")

    def __init__(self) -> None:
        self._second = -1000  # in milliseconds
        self._beginning = ""

    def write(self, now: float) -> str:
        since = int(now * 1000) - self._second
        if not 0 <= since < 1000:
            second, since = divmod(int(now * 1000), 1000)
            self._second = second * 1000
            self._beginning = strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))
        return self._beginning + _THOUSANDTHS[since]


def caller_of(entry: Entry) -> str:
    """Return who has sent a message: a session, or else an address.

    Without the port, because clients of a stateless upstream may reconnect for each call.

    >>> caller_of({"session": "s", "client": "127.0.0.1:5000"})
    's'
    >>> caller_of({"client": "127.0.0.1:5000"}), caller_of({"client": "[::1]:5000#c"})
    ('127.0.0.1', '[::1] #c')
    """
    if session := entry.get("session"):
        return str(session)
    address, _, credential = str(entry.get("client") or "").partition("#")
    host = address.rpartition(":")[0] or address or str(entry.get("transport") or "none")
    return f"{host} #{credential}" if credential else host


def method_of(entry: Entry) -> str:
    """Return a message's method; of what has none, what it is.

    >>> method_of({"method": "tools/list"}), method_of({"why": "malformed"})
    ('tools/list', 'unreadable')
    >>> method_of({"why": "forbidden"})  # by its head: nobody has read it
    'request'
    """
    unnamed = "request" if entry.get("why") in ("forbidden", "lost") else "unreadable"
    return str(entry.get("method") or unnamed)


def subject_in(entry: Entry) -> str:
    """Return what a message is about; empty if it names nothing.

    >>> subject_in({"tool": "read"}), subject_in({"uri": "file:///a", "resource": "file:///a"})
    ('read', 'file:///a')
    """
    names = (entry.get(key) for key in ("tool", "uri", "prompt", "resource", "skill"))
    return str(next(filter(None, names), ""))


def is_refused(entry: Entry) -> bool:
    """Tell whether a request was refused. (An invalid answer of the upstream is not a refusal.)

    >>> is_refused({"verdict": "refused"}), is_refused({"verdict": "dropped", "why": "invalid"})
    (True, False)
    >>> is_refused({"verdict": "refused", "shadow": True})  # it was only reported
    False
    """
    return (
        not entry.get("shadow")
        and entry.get("verdict") in ("refused", "dropped")
        and entry.get("why") != "invalid"
    )


def has_failed(entry: Entry) -> bool:
    """Tell whether a call that went through got an error: the upstream's, the tool's, or a rule's.

    >>> has_failed({"error_code": -1}), has_failed({"answer_why": "blocked"}), has_failed({})
    (True, True, False)
    """
    if "error_code" in entry or entry.get("status") is not None:
        return True
    is_blocked = entry.get("answer_why") == "blocked" and not entry.get("shadow")
    return entry.get("tool_error") is True or is_blocked


def reported(entry: Entry) -> str:
    """Return what the policy would have done, if it was only reported; else an empty text.

    >>> reported({"verdict": "refused", "why": "denied", "pattern": "^rm", "shadow": True})
    'would be refused (denied by ^rm)'
    >>> reported({"verdict": "forwarded", "answer_verdict": "changed", "answer_why": "hidden",
    ...           "shadow": True})
    'answer would be changed (hidden)'
    """
    if not entry.get("shadow"):
        return ""
    parts = []
    for whose, prefix in (("", ""), ("answer ", "answer_")):
        why = entry.get(f"{prefix}why")
        if why and entry.get(f"{prefix}verdict") not in (None, "forwarded"):
            by = entry.get(f"{prefix}rule") or entry.get(f"{prefix}pattern")
            word = "refused" if why == "blocked" else entry[f"{prefix}verdict"]
            parts.append(f"{whose}would be {word} ({why}{f' by {by}' if by else ''})")
    return "; ".join(parts)


_LARGEST = 2**63


def count_in(entry: Entry, name: str) -> int | None:
    """Return a count as we write it: anybody may have written to a log that is read.

    >>> count_in({"bytes": 7}, "bytes"), count_in({"bytes": -7}, "bytes"), count_in({}, "bytes")
    (7, None, None)
    """
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < _LARGEST else None


def milliseconds_in(entry: Entry, name: str) -> float | None:
    """Return a time as we write it.

    >>> milliseconds_in({"ms": 1.5}, "ms"), milliseconds_in({"ms": float("nan")}, "ms")
    (1.5, None)
    """
    value = entry.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _LARGEST else None


_BEGINNING = b'{"v":'
START = "0" * 64
"""The previous hash in the very first line."""


_CUT = "it was cut off while it was written, and the lines after it are lost"


@dataclass(frozen=True, slots=True)
class Problem:
    number: int
    """The number of the line, from 1."""
    text: str


def render(entry: Entry) -> bytes:
    """Render an entry as a non-empty JSON object."""
    try:
        return orjson.dumps(entry, default=made)
    except TypeError:  # for example half a surrogate pair, which orjson refuses
        text = json.dumps(entry, default=made, ensure_ascii=False)
        return text.encode("utf-8", "replace")


def may_begin_log(beginning: bytes) -> bool:
    """Tell whether a file that begins so may be an audit log; a crash may cut its first line.

    >>> may_begin_log(b""), may_begin_log(b'{"v"'), may_begin_log(b"# My notes")
    (True, True, False)
    """
    first, newline, _ = beginning.partition(b"\n")
    if first.startswith(_BEGINNING) or b'"prev":"' in first:
        return True
    return not newline and _BEGINNING.startswith(first)


def link(rendered: bytes, before: str) -> bytes:
    """Return an entry as a line without its end; ``before`` is the hash of the line before."""
    return b'%b,"prev":"%b"}' % (rendered[:-1], before.encode())


def link_all(rendered: Iterable[bytes], before: str) -> tuple[bytes, str]:
    """Return entries as lines, each linked to the one before it, and the hash of the last line."""
    lines = []
    for entry in rendered:
        line = link(entry, before)
        before = hash_of(line)
        lines.append(line)
    lines.append(b"")  # the last one has an end, too
    return b"\n".join(lines), before


def hash_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def check(lines: Iterable[bytes], before: str | None = None) -> Iterator[Problem]:
    """Yield the problems of the lines; the first may have any previous hash if ``before`` is
    None."""
    for number, line in enumerate(lines, start=1):
        try:
            previous = orjson.loads(line)["prev"]
        except (ValueError, KeyError, TypeError):
            is_cut = line.startswith(b"{") and not line.endswith(b"}")
            yield Problem(number, _CUT if is_cut else "not a line of an audit log")
            before = hash_of(line)
            continue
        if before is not None and previous != before:
            yield Problem(number, "the line before was changed, or one is missing")
        before = hash_of(line)
