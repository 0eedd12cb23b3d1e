"""The files that the user names: a log, its parts, and files that were put aside, as lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mcp_tool_filter.adapters.watch.audit_log import (
    DamagedFile,
    age_of,
    asides_of,
    chain_of,
    is_part,
    lines_in,
    parts_of,
)
from mcp_tool_filter.cli.flags import UsageError
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.observers.audit.chain import hash_of
from mcp_tool_filter.observers.audit.entry import Entry

type TellDamage = Callable[[Path, str], None]


def paths_of(files: Sequence[str]) -> list[Path]:
    """Return the named files and their parts, those that were put aside first, each once."""
    if not files:
        raise UsageError(
            "Which file? mcp-tool-filter audit FILE", why="--audit-log FILE writes one"
        )
    found = [one for file in map(Path, files) for one in (file, *parts_of(file))]
    return sorted({_identity(one): one for one in found}.values(), key=age_of)


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
        own = str(path.with_name(chain_of(path.name))) if is_part(path.name) else ""
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
    for path in [*(one for one in paths if ends[one][0] not in lasts), *paths]:
        at: Path | None = path
        while at is not None and at not in ordered:
            ordered[at] = None
            at = follows.get(ends[at][1])
    return list(ordered)


def _ends_of(path: Path) -> tuple[str, str]:
    """Return the hash that a file continues, and that of its last line."""
    first, last = b"", b""
    try:
        for line in lines_in(path):
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
            yield from lines_in(path)
        except OSError as error:
            why = error.strerror or str(error)
            if damaged is None or not isinstance(error, DamagedFile):
                raise StartError(f"Cannot read {path}", why=why) from None
            damaged(path, why)


def parse_line(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(entry, dict) and ("prev" in entry or "time" in entry)
    return entry if is_ours else None


def file_that_ends_with(hash: str, paths: Sequence[Path]) -> Path | None:
    """Return the file beside these whose last line has this hash; such as one put aside."""
    log = paths[0].with_name(chain_of(paths[0].name))
    for path in asides_of(log):  # mostly the newest
        if path not in paths and _ends_of(path)[1] == hash:
            return path
    return None
