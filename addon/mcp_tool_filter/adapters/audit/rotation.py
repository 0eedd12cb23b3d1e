"""The files of an audit log beside the one in use: those put aside when full, and parts.

``audit.jsonl.20261118T210000Z-1.gz`` was put aside; ``audit.jsonl.pid4711`` is a part, which the
process 4711 began because another one wrote ``audit.jsonl``.

>>> chain_of("audit.jsonl.20261118T210000Z-1.gz"), chain_of("audit.jsonl.pid4711")
('audit.jsonl', 'audit.jsonl.pid4711')
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from mcp_tool_filter.observers.audit.chain import START, hash_of

log = logging.getLogger(__name__)

_ASIDE = re.compile(r"(?P<name>.+)\.(?P<time>\d{8}T\d{6}Z)(?:-(?P<number>\d+))?(?:\.gz)?")
_PART = re.compile(r".+\.pid[0-9]{1,20}")


class DamagedFile(OSError):
    """A compressed file that cannot be read to its end."""


def chain_of(name: str) -> str:
    """Return the name of the file whose lines continue those of a file that was put aside."""
    aside = _ASIDE.fullmatch(name)
    return aside["name"] if aside else name


def is_part(name: str) -> bool:
    """Tell whether a file is a part, or was one before it was put aside."""
    return _PART.fullmatch(chain_of(name)) is not None


def parts_of(path: Path) -> list[Path]:
    """Return the parts beside a log that are in use, or were."""
    found = path.parent.glob(f"{glob_escape(path.name)}.pid*")
    return sorted(one for one in found if _PART.fullmatch(one.name))


def glob_escape(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def age_of(path: Path) -> tuple[bool, str, int]:
    """Sort files that were put aside before the others, oldest first, as no shell does.

    >>> sorted(["a.jsonl", "a.jsonl.20261118T210000Z-1.gz", "a.jsonl.20261118T210000Z.gz"],
    ...        key=lambda name: age_of(Path(name)))
    ['a.jsonl.20261118T210000Z.gz', 'a.jsonl.20261118T210000Z-1.gz', 'a.jsonl']
    """
    aside = _ASIDE.fullmatch(path.name)
    return (False, aside["time"], int(aside["number"] or "0")) if aside else (True, "", 0)


def asides_of(path: Path) -> list[Path]:
    """Return the files that this one continues, the newest first."""
    found = [
        one for one in path.parent.glob(f"{glob_escape(path.name)}.*")
        if one.name != path.name and chain_of(one.name) == path.name
    ]  # fmt: skip
    return sorted(found, key=age_of, reverse=True)


def lines_in(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file. Raises OSError; DamagedFile after the lines before the damage."""
    try:
        with closing(_open(path)) as file:
            for line in file:
                yield line.rstrip(b"\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedFile(f"It is damaged: {error}") from None


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]  # it reads like a file
    return path.open("rb")


def last_line_before(path: Path) -> str:
    """Return the hash of the last line that was put aside: an empty log continues there."""
    for aside in asides_of(path):
        last = b""
        with suppress(OSError):
            for line in lines_in(aside):
                last = line
        if last:
            return hash_of(last)
    return START


def put_aside(path: Path, now: float) -> tuple[Path, int]:
    """Rename a full file and put an empty one in its place; return its new name and the new file.

    There is always a file with this name, so that no other process begins one meanwhile.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    handle = os.open(new, flags, 0o600)
    try:
        lock(handle)
        aside = _rename_both(path, new, _free_name(path, now))
    except BaseException:
        os.close(handle)
        with suppress(OSError):
            new.unlink()
        raise
    return aside, handle


def _rename_both(path: Path, new: Path, aside: Path) -> Path:
    try:
        os.link(path, aside)
    except OSError:  # not every file system has hard links
        path.rename(aside)
    try:
        new.rename(path)
    except OSError:
        if path.exists():
            aside.unlink()
        raise
    return aside


def lock(handle: int) -> bool:
    """Lock a file until it is closed; False if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _free_name(path: Path, now: float) -> Path:
    """Return an unused name for a full file, made from the time."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    number = 0
    while True:
        name = f"{path.name}.{stamp}{f'-{number}' if number else ''}"
        aside = path.with_name(name)
        if not aside.exists() and not aside.with_name(f"{name}.gz").exists():
            return aside
        number += 1


def compress(path: Path) -> None:
    """Compress a file and remove the original; log a failure."""
    packed = path.with_name(f"{path.name}.gz")
    part = path.with_name(f".{path.name}.gz")
    try:
        with path.open("rb") as plain:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw) as out:
                shutil.copyfileobj(plain, out, 1024 * 1024)
        part.rename(packed)
        path.unlink()
    except OSError as error:
        log.warning("Cannot compress %s: %s", path, error.strerror or error)
        with suppress(OSError):
            part.unlink()
