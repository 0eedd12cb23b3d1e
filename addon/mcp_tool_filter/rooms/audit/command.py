"""``mcp-tool-filter audit``: read an audit log, follow it, and check that no line was changed.

The user names a log; its parts, and the files that were put aside, belong to it.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from mcp_tool_filter.cli.flags import WORDS, Given, UsageError
from mcp_tool_filter.cli.help import show_help
from mcp_tool_filter.cli.report import estimate_tokens
from mcp_tool_filter.cli.table import COMMANDS
from mcp_tool_filter.cli.terminal import count, say
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.rooms.audit import audit_log, summary
from mcp_tool_filter.rooms.audit.activity import duration
from mcp_tool_filter.rooms.audit.entry import (
    START,
    Entry,
    check,
    hash_of,
    method_of,
    subject_in,
)

_AGO = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MOST_SHOWN = 20
_PAUSE = 0.2  # seconds between two checks of a followed file


def run(typed: Given) -> int:
    """Run the subcommand; return the exit status."""
    if not typed:
        return show_help(COMMANDS["audit"])
    files = typed.get(WORDS, [])
    if files[:1] == ["verify"]:
        known, after = (typed.get(name, [""])[-1] for name in ("last", "after"))
        return verify(paths_of(files[1:]), known=known, after=after)
    since = _parse_since(typed["since"][-1]) if "since" in typed else ""
    if files[:1] == ["suggest"]:
        return _suggest(summary.look_through(_entries(paths_of(files[1:]), since)), typed)
    if "follow" in typed:
        return _follow(paths_of(files), since, "json" in typed)
    entries = _entries(paths_of(files), since)
    _print_summary(summary.summarise(entries), "json" in typed)
    return 0


def _suggest(seen: summary.LoggedCalls, typed: Given) -> int:
    if "policy" in typed:
        print("\n".join(summary.policy_lines(seen)))
        return 0
    names, sizes = _tools_of(typed) if "upstream" in typed else ([], {})
    without = [name for name in names if name not in seen.calls]
    refused = [name for name in without if name in seen.refused]
    unused = [name for name in without if name not in seen.refused]
    if "json" in typed:
        unusual = [asdict(call) for call in summary.unusual_calls(seen)]
        suggestions = {"never_called": unused, "only_refused": refused, "unusual": unusual}
        print(json.dumps({"calls": seen.total, **suggestions}))
        return 0
    print("\n".join(_suggestions(seen, unused, refused, sizes)))
    return 0


def _tools_of(typed: Given) -> tuple[list[str], dict[str, int]]:
    """Return the upstream's current tools, and the bytes of each."""
    from mcp_tool_filter.cli.commands.look import ask_now
    from mcp_tool_filter.cli.settings import gather, settle

    known = ask_now(settle(gather({"upstream": typed["upstream"]}, os.environ)))
    sizes = {tool.name: tool.size for tool in known.tools}
    return list(sizes), sizes


def _suggestions(
    seen: summary.LoggedCalls, unused: list[str], refused: list[str], sizes: dict[str, int]
) -> Iterator[str]:
    """Yield the suggestions; ``sizes`` are the bytes of the upstream's tools."""
    calls, tools = count(seen.total, "call"), count(len(seen.calls), "tool")
    yield f"{calls} of {tools} in {count(len(seen.sessions), 'session')}"
    if unused:
        from mcp_tool_filter.cli.switching import deny_for

        tokens = estimate_tokens(sum(sizes[name] for name in unused))
        yield f"\nNever called: {len(unused)} of {len(sizes)} tools, about {tokens} tokens per list"
        yield from (f"  {estimate_tokens(sizes[name]):>7}  {shown(name)}" for name in unused)
        hidden = [name for name in sizes if name in {*unused, *refused}]  # these must stay hidden
        also = " (and those below, which are already refused)" if refused else ""
        yield f"Hide them{also}: --deny {shlex.quote(deny_for(hidden, list(sizes)))}"
        yield "Sure: no call in this log names them. Not sure: whether somebody will need them."
    if refused:
        yield f"\nCalled and always refused: {count(len(refused), 'tool')}"
        yield from (f"  {seen.refused[name]:>7}  {shown(name)}" for name in refused)
        yield "Sure: no call went through. Not sure: whether these callers should have them."
    unusual = summary.unusual_calls(seen)
    if unusual:
        yield "\nUnusual calls (they may be fine):"
        yield from (f"  {call.time}  {call.tool}: {call.why}" for call in unusual)
    if seen.total < summary.FEWEST:
        yield f"\nFewer than {summary.FEWEST} calls: too few to judge sizes and rates"
    if not sizes:
        yield "\nAdd --upstream URL to find tools that nobody calls, and what they cost"
    yield "\nAdd --policy to print a rules file that allows the calls in this log"


def _entries(paths: Sequence[Path], since: str) -> Iterator[Entry]:
    """Yield the entries of all files in the order of their times."""
    wrong = right = 0
    chains: dict[str, list[Path]] = {}
    for path in paths:
        chains.setdefault(str(path.parent / audit_log.chain_of(path.name)), []).append(path)

    def warn(path: Path, why: str) -> None:
        say(f"Warning: {path} cannot be read to its end: {why}")

    for line in _by_time(lines_of(files, warn) for files in chains.values()):
        if (entry := parse_line(line)) is None:
            wrong += 1
            continue
        right += 1
        if str(entry.get("time", "")) >= since:
            yield entry
    if wrong and not right:
        raise not_a_log(paths)
    if wrong:
        say(f"Warning: {count(wrong, 'line')} cannot be read: see audit verify")


def _by_time(streams: Iterable[Iterator[bytes]]) -> Iterator[bytes]:
    """Merge the lines of several processes; those of each are in order already.

    Times have milliseconds: of two processes' lines within one, nobody knows which came first.
    """
    known = list(streams)
    return known[0] if len(known) == 1 else heapq.merge(*known, key=_time_in)


def _time_in(line: bytes) -> str:
    return str((parse_line(line) or {}).get("time", ""))


def _parse_since(text: str) -> str:
    """Return the time in the entries' format, which can be compared as text."""
    if ago := _AGO.fullmatch(text):
        when = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    else:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            why = "It must be a time such as 2026-11-18T09:30, or 2h for two hours ago"
            raise UsageError(f"--since cannot be {text}", why=why) from None
        when = when.astimezone(UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _follow(paths: Sequence[Path], since: str, as_json: bool) -> int:
    show: Callable[[Entry], str] = json.dumps if as_json else line_for_people
    in_use = [path for path in paths if audit_log.chain_of(path.name) == path.name] or paths[-1:]
    is_log = False
    for line in _growing(in_use):
        entry = parse_line(line)
        if entry is None and not is_log:
            raise not_a_log(in_use[:1])
        is_log = True
        if entry is not None and str(entry.get("time", "")) >= since:
            print(show(entry), flush=True)
    return 0


def _growing(paths: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of files as they are written, and of parts that are begun meanwhile."""
    followed: dict[Path, _Followed] = {}
    try:
        while True:
            for path in (*paths, *audit_log.parts_of(paths[0])):
                if path not in followed:
                    followed[path] = _Followed(path)
            is_quiet = True
            for line in _by_time(log.new_lines() for log in followed.values()):
                is_quiet = False
                yield line
            if is_quiet:
                time.sleep(_PAUSE)
    finally:
        for log in followed.values():
            log.file.close()


class _Followed:
    """A file as it grows, and the one that replaces it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        self._rest = b""
        try:
            self.file = self._path.open("rb")
        except OSError as error:
            raise _cannot_read(self._path, error) from None

    def new_lines(self) -> Iterator[bytes]:
        is_replaced = self._is_replaced()  # asked first: more lines may be written meanwhile
        while piece := self.file.read(64 * 1024):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            yield from lines
        if is_replaced:
            self.file.close()
            self._open()

    def _is_replaced(self) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(self.file.fileno()).st_ino
        except OSError:  # the file is just being replaced
            return False


def _cannot_read(path: Path, error: OSError) -> StartError:
    return StartError(f"Cannot read {path}", why=error.strerror or str(error))


def line_for_people(entry: Entry) -> str:
    """Return an entry as one short line."""
    if "event" in entry:
        values = [entry.get(key) for key in ("time", "event", "count", "rule", "level", "message")]
        return " ".join(shown(str(value)) for value in values if value is not None)
    took = entry.get("upstream_ms")
    parts = [
        entry.get("time"), entry.get("client_name") or entry.get("client") or "-",
        entry.get("server"), method_of(entry), subject_in(entry),
        entry.get("verdict"), entry.get("rule") or entry.get("pattern") or entry.get("why") or "",
        duration(took) if took is not None else "",
    ]  # fmt: skip
    return " ".join(shown(str(part)) for part in parts if part)


def _print_summary(found: summary.Summary, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
        return
    when = f" from {shown(found.first)} to {shown(found.last)}" if found.first else ""
    print(f"{found.entries:,} {'entry' if found.entries == 1 else 'entries'}{when}")
    unanswered = count(found.unanswered, "call")
    print(f"{count(len(found.sessions), 'session')}, {unanswered} without an answer")
    if found.dropped:
        print(f"{count(found.dropped, 'line')} could not be written")
    widest = max((len(shown(server)) for _, server, _ in found.at), default=0)
    gap = 2 if widest else 0
    for title in ("calls", "refused", "errors"):
        counts = [(one, n) for one, n in found.at.most_common() if one[0] == title]
        lines = [
            f"{n:>7}  {shown(server):{widest + gap}}{shown(name)}"
            for (_, server, name), n in counts
        ]
        _print_first(title, lines)
    busiest = sorted(found.by_session.items(), key=lambda session: -session[1].total())
    sessions = [
        f"{n.total():>7}  {_name_of(caller, found)}: {_most_called(n)}" for caller, n in busiest
    ]
    _print_first("calls by session", sessions)
    slowest = [f"{took:>9.1f} ms  {shown(tool)}" for took, tool in reversed(found.slowest)]
    _print_first("slowest calls", slowest)


def _name_of(caller: str, found: summary.Summary) -> str:
    """Return what the client of a session calls itself, and the beginning of the session's id."""
    if not (name := found.names.get(caller)):
        return shown(caller)
    return f"{shown(name)} ({shown(caller[:_MARK])})"


_MARK = 8  # characters of a session's hash: enough to tell it from others


def _print_first(title: str, lines: Sequence[str]) -> None:
    """Print the first lines of a part, and how many more there are."""
    if lines:
        print(f"\n{title}")
        print("\n".join(f"  {line}" for line in lines[:_MOST_SHOWN]))
    if (more := len(lines) - _MOST_SHOWN) > 0:
        print(f"  and {more} more")


def _most_called(calls: Counter[str]) -> str:
    """Return the tools that are called most, with their numbers.

    >>> _most_called(Counter(read=2, write=1))
    'read 2, write 1'
    """
    named = ", ".join(f"{shown(tool)} {times}" for tool, times in calls.most_common(5))
    more = len(calls) - 5
    return named + (f" and {more} more" if more > 0 else "")


type TellDamage = Callable[[Path, str], None]


def paths_of(files: Sequence[str]) -> list[Path]:
    """Return the named files and their parts, those that were put aside first, each once."""
    if not files:
        raise UsageError(
            "Which file? mcp-tool-filter audit FILE", why="--audit-log FILE writes one"
        )
    paths = [path for file in map(Path, files) for path in (file, *audit_log.parts_of(file))]
    return sorted({_identity(path): path for path in paths}.values(), key=audit_log.age_of)


def _identity(path: Path) -> object:
    """Return what is equal for two names of one file, and for a file and its compressed copy."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    try:
        there = (plain if plain.exists() else path).stat()
    except OSError:  # the error comes when it is read
        return plain
    return there.st_dev, there.st_ino


def chains_in(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the files of each chain of lines: each part is a chain of its own."""
    chains: dict[str, list[Path]] = {}
    for path in paths:
        own = (
            str(path.parent / audit_log.chain_of(path.name)) if audit_log.is_part(path.name) else ""
        )
        chains.setdefault(own, []).append(path)
    return [_linked(files) for _, files in sorted(chains.items())]


def _linked(paths: Sequence[Path]) -> list[Path]:
    """Sort files by their links: their names are in another order if the clock was set back."""
    if len(paths) < 2:
        return list(paths)
    ends = {path: _ends_of(path) for path in paths}
    follows = {before: path for path, (before, _) in reversed(ends.items())}
    lasts = {last for _, last in ends.values()}
    ordered: dict[Path, None] = {}
    for path in [*(other for other in paths if ends[other][0] not in lasts), *paths]:
        at: Path | None = path
        while at is not None and at not in ordered:
            ordered[at] = None
            at = follows.get(ends[at][1])
    return list(ordered)


def _ends_of(path: Path) -> tuple[str, str]:
    """Return the hash that a file continues, and that of its last line."""
    first, last = b"", b""
    try:
        for line in audit_log.lines_in(path):
            first, last = first or line, line
        end = hash_of(last)
    except OSError:  # whoever reads the file says so; its end is not known
        end = ""
    return str((parse_line(first) or {}).get("prev", "")), end


def not_a_log(paths: Sequence[Path]) -> UsageError:
    names = ", ".join(map(str, paths))
    return UsageError(
        f"{names} is not an audit log", why="Name a file that --audit-log has written"
    )


def lines_of(paths: Sequence[Path], damaged: TellDamage | None = None) -> Iterator[bytes]:
    """Yield the lines of files; ``damaged`` is told of a file that cannot be read to its end."""
    for path in paths:
        try:
            yield from audit_log.lines_in(path)
        except OSError as error:
            if damaged is None or not isinstance(error, audit_log.DamagedFile):
                raise _cannot_read(path, error) from None
            damaged(path, str(error))


def parse_line(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(entry, dict) and ("prev" in entry or "time" in entry)
    return entry if is_ours else None


def file_that_ends_with(hash: str, paths: Sequence[Path]) -> Path | None:
    """Return the file beside these whose last line has this hash; such as one put aside."""
    log = paths[0].parent / audit_log.chain_of(paths[0].name)
    for path in audit_log.asides_of(log):  # mostly the newest
        if path not in paths and _ends_of(path)[1] == hash:
            return path
    return None


_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class _Chain:
    """The lines of one file, and of those it continues."""

    paths: Sequence[Path]
    name: str
    """Printed before each line about it; empty for the only chain."""
    known: str
    lines: int = 0
    problems: int = 0
    first: str = ""
    last: str = ""
    is_there: bool = False
    beside: Path | None = None

    def check(self, after: str) -> None:
        for problem in check(self._counted(), after or None):
            self._tell(f"line {problem.number}: {problem.text}")
        if self.first in ("", START) or after:
            return
        self.beside = file_that_ends_with(self.first, self.paths)
        if self.beside is None:
            self._tell("line 1: the line before it is missing: it is in none of these files")
            if _HASH.fullmatch(self.first):
                print(f"If older files were removed on purpose: --after {self.first}")

    def _counted(self) -> Iterator[bytes]:
        for line in lines_of(self.paths, lambda path, why: self._tell(f"{path}: {why}")):
            self.lines += 1
            self.last = hash_of(line)
            self.is_there = self.is_there or self.last == self.known
            if self.lines == 1:
                self.first = str((parse_line(line) or {}).get("prev", ""))
            yield line

    def _tell(self, problem: str) -> None:
        self.problems += 1
        print(self.name + problem)


def verify(paths: Sequence[Path], *, known: str = "", after: str = "") -> int:
    """Check the chains; return the exit status.

    ``known`` is the hash of a line that must still be there; ``after`` that of the last line of
    files that are no longer kept.
    """
    lines_there = partial(lines_of, paths, lambda _path, _why: None)  # the check tells of damage
    # A line of an audit log, or one that was to become it.
    is_log = any(
        line.startswith(b'{"v":') or parse_line(line) is not None for line in lines_there()
    )
    if not is_log and any(lines_there()):
        raise not_a_log(paths)
    chains = [
        _Chain(files, f"{files[-1].name}: " if index else "", known.lower())
        for index, files in enumerate(chains_in(paths))
    ]
    for chain in chains:
        chain.check(after.lower() if chain is chains[0] else "")
    lines = sum(chain.lines for chain in chains)
    if problems := sum(chain.problems for chain in chains):
        print(f"{problems} of {lines} lines are wrong")
        return 1
    if known and not any(chain.is_there for chain in chains):
        print(f"No line has the hash {known}: the line was changed, or removed from the end")
        return 1
    for chain in chains:
        sentence = f"{chain.lines} lines, none changed; the last hash is {chain.last or 'none'}"
        print(chain.name + sentence)
        if chain.beside:
            sentence = (
                f"The first line follows the last line of {chain.beside}, which was not checked"
            )
            print(chain.name + sentence)
    if known:
        print("The line with this hash is there, and nothing before it has changed")
    elif lines:
        print(
            "Not checked: whether the last line was changed, or lines were removed from the end."
            "\nKeep the last hash in another place, and check it later:"
            " audit verify FILE --last HASH"
        )
    return 0
