"""``audit verify``: check that no line of an audit log was changed, and that none is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_tool_filter.cli.commands.audit_files import (
    chains_in,
    file_that_ends_with,
    lines_of,
    not_a_log,
    parse_line,
)
from mcp_tool_filter.observers.audit.chain import START, check, hash_of

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
    if not any(map(_is_like_ours, lines_of(paths, _ignore))) and any(lines_of(paths, _ignore)):
        raise not_a_log(paths)
    found = chains_in(paths)
    chains = [
        _Chain(files, f"{files[-1].name}: " if index else "", known.lower())
        for index, files in enumerate(found)
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
        said = f"{chain.lines} lines, none changed; the last hash is {chain.last or 'none'}"
        print(chain.name + said)
        if chain.beside:
            said = f"The first line follows the last line of {chain.beside}, which was not checked"
            print(chain.name + said)
    if known:
        print("The line with this hash is there, and nothing before it has changed")
    elif lines:
        print(
            "Not checked: whether the last line was changed, or lines were removed from the end."
            "\nKeep the last hash in another place, and check it later:"
            " audit verify FILE --last HASH"
        )
    return 0


def _ignore(_path: Path, _why: str) -> None:
    """The check says so."""


def _is_like_ours(line: bytes) -> bool:
    """Tell whether a line is one of an audit log, or was to become one."""
    return line.startswith(b'{"v":') or parse_line(line) is not None
