"""The files of an audit log: the one in use and those that were put aside, as lines."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from mcp_tool_filter.cli.settings.usage import UsageError
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.observers.audit.chain import hash_of
from mcp_tool_filter.observers.audit.entry import Entry

# As the writer names them.
_ASIDE = re.compile(r"(?P<name>.+)\.(?P<time>\d{8}T\d{6}Z)(?:-(?P<number>\d+))?(?:\.gz)?")


def paths_of(files: Sequence[str]) -> list[Path]:
    if not files:
        raise UsageError(
            "Which file? mcp-tool-filter audit FILE", why="--audit-log FILE writes one"
        )
    return sorted(map(Path, files), key=_age)


def _age(path: Path) -> tuple[bool, str, int]:
    """Sort files that were put aside before the others, oldest first, as no shell does.

    >>> sorted(["a.jsonl", "a.jsonl.20261118T210000Z-1.gz", "a.jsonl.20261118T210000Z.gz"],
    ...        key=lambda name: _age(Path(name)))
    ['a.jsonl.20261118T210000Z.gz', 'a.jsonl.20261118T210000Z-1.gz', 'a.jsonl']
    """
    aside = _ASIDE.fullmatch(path.name)
    return (False, aside["time"], int(aside["number"] or "0")) if aside else (True, "", 0)


def not_a_log(paths: Sequence[Path]) -> UsageError:
    names = ", ".join(map(str, paths))
    return UsageError(
        f"{names} is not an audit log", why="Name a file that --audit-log has written"
    )


def lines_of(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        try:
            with closing(_open(path)) as file:
                for line in file:
                    yield line.rstrip(b"\n")
        except (OSError, EOFError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise StartError(f"Cannot read {path}", why=why) from None


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]  # it reads like a file
    return path.open("rb")


def parse_line(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(entry, dict) and ("prev" in entry or "time" in entry)
    return entry if is_ours else None


def file_that_ends_with(hash: str, paths: Sequence[Path]) -> Path | None:
    """Return the file beside these whose last line has this hash; such as one put aside."""
    aside = _ASIDE.fullmatch(paths[0].name)
    name = aside["name"] if aside else paths[0].name
    for path in sorted(paths[0].parent.glob("*"), key=_age, reverse=True):  # mostly the last
        other = _ASIDE.fullmatch(path.name)
        if not other or other["name"] != name or path in paths:
            continue
        last = b""
        try:
            for line in lines_of([path]):
                last = line
        except StartError:  # it is being compressed, or not ours
            continue
        if last and hash_of(last) == hash:
            return path
    return None
