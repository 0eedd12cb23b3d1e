"""``audit verify``: check that no line of an audit log was changed, and that none is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mcp_tool_filter.cli.commands.audit_files import (
    file_that_ends_with,
    lines_of,
    not_a_log,
    parse_line,
)
from mcp_tool_filter.observers.audit.chain import START, check, hash_of

_HASH = re.compile(r"[0-9a-f]{64}")


def verify(paths: Sequence[Path], *, known: str = "", after: str = "") -> int:
    """Check the chain; return the exit status.

    ``known`` is the hash of a line that must still be there; ``after`` that of the last line of
    files that are no longer kept.
    """
    lines = 0
    last = first = ""
    is_there = False

    def counted() -> Iterator[bytes]:
        nonlocal lines, last, first, is_there
        for line in lines_of(paths):
            lines += 1
            last = hash_of(line)
            is_there = is_there or last == known.lower()
            if lines == 1:
                first = str((parse_line(line) or {}).get("prev", ""))
            yield line

    if not any(map(_is_like_ours, lines_of(paths))) and any(lines_of(paths)):
        raise not_a_log(paths)
    problems = 0
    for problem in check(counted(), after.lower() or None):
        problems += 1
        print(f"line {problem.number}: {problem.text}")
    beside = None
    if first not in ("", START) and not after:
        beside = file_that_ends_with(first, paths)
        if beside is None:
            problems += 1
            print("line 1: the line before it is missing: it is in none of these files")
            if _HASH.fullmatch(first):
                print(f"If older files were removed on purpose: --after {first}")
    if problems:
        print(f"{problems} of {lines} lines are wrong")
        return 1
    if known and not is_there:
        print(f"No line has the hash {known}: the line was changed, or removed from the end")
        return 1
    print(f"{lines} lines, none changed; the last hash is {last or 'none'}")
    if beside:
        print(f"The first line follows the last line of {beside}, which was not checked")
    if known:
        print("The line with this hash is there, and nothing before it has changed")
    elif lines:
        print(
            "Not checked: whether the last line was changed, or lines were removed from the end."
            "\nKeep the last hash in another place, and check it later:"
            " audit verify FILE --last HASH"
        )
    return 0


def _is_like_ours(line: bytes) -> bool:
    """Tell whether a line is one of an audit log, or was to become one."""
    return line.startswith(b'{"v":') or parse_line(line) is not None
