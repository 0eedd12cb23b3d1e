"""Write the audit log to disk in one thread, so that no message waits for it.

Entries are rendered where they are made; only slow parts, such as a long result, are left to the
thread. It wakes a few times a second, because waking for each line would cost more than the line.

Entries that cannot be queued or written are counted, and the count is logged when writing works
again. We only append to a file; a full one is renamed by the time and compressed. If another
process writes the file, such as the filter of a client's second window, we write a part beside it,
which is a chain of its own; ``audit`` reads them together.

The files of an audit log beside the one in use: those put aside when full, and parts.

``audit.jsonl.20261118T210000Z-1.gz`` was put aside; ``audit.jsonl.pid4711`` is a part, which the
process 4711 began because another one wrote ``audit.jsonl``.

>>> chain_of("audit.jsonl.20261118T210000Z-1.gz"), chain_of("audit.jsonl.pid4711")
('audit.jsonl', 'audit.jsonl.pid4711')
"""

from __future__ import annotations

import errno
import glob
import gzip
import logging
import os
import re
import shutil
import stat
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread

import orjson

from mcp_tool_filter.cli.whole_file import open_at_once, try_lock
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.audit.entry import (
    START,
    Entry,
    Timestamps,
    hash_of,
    held_by,
    link,
    link_all,
    may_begin_log,
    render,
)

log = logging.getLogger(__name__)

_ASIDE = re.compile(r"(?P<name>.+)\.(?P<time>\d{8}T\d{6}Z)(?:-(?P<number>\d+))?(?:\.gz)?")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_FILE = "It is not a regular file"
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
    parts = path.parent.glob(f"{glob.escape(path.name)}.pid*")
    return sorted(part for part in parts if _PART.fullmatch(part.name))


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
        rotated for rotated in path.parent.glob(f"{glob.escape(path.name)}.*")
        if rotated.name != path.name and chain_of(rotated.name) == path.name
    ]  # fmt: skip
    return sorted(found, key=age_of, reverse=True)


def lines_in(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file. Raises OSError; DamagedFile after the lines before the damage."""
    try:
        with open(path, "rb", opener=open_at_once) as raw:
            if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
                raise OSError(errno.EINVAL, _NO_FILE)
            for line in gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw:
                yield line.rstrip(b"\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedFile(f"It is damaged: {error}") from None


def _create_beside(path: Path) -> tuple[Path, int]:
    """Create a file in the same folder, which only its user may read. Raises OSError.

    Others may be able to write the folder. So nobody can foresee the name, and put a link there.
    """
    new = path.with_name(f".{path.name}.{token_hex(8)}")
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _NO_LINK
    return new, os.open(new, flags, 0o600)


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
    new, handle = _create_beside(path)
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
        os.link(path, aside)  # it does not replace a file that has come meanwhile
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
    return sys.platform == "win32" or try_lock(handle)


def _free_name(path: Path, now: float) -> Path:
    """Return an unused name for a full file, made from the time."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    number = 0
    while True:
        name = f"{path.name}.{stamp}{f'-{number}' if number else ''}"
        aside = path.with_name(name)
        if not any(map(os.path.lexists, (aside, aside.with_name(f"{name}.gz")))):
            return aside
        number += 1


def compress(path: Path) -> None:
    """Compress a file and remove the original; log a failure."""
    packed = path.with_name(f"{path.name}.gz")
    part = None
    try:
        part, handle = _create_beside(packed)
        with (
            open(handle, "wb") as raw,
            open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK), "rb") as plain,
            gzip.GzipFile("", "wb", fileobj=raw) as out,
        ):
            shutil.copyfileobj(plain, out, 1024 * 1024)
        part.rename(packed)
        path.unlink()
    except OSError as error:
        log.warning("Cannot compress %s: %s", path, error.strerror or error)
        if part is not None:
            with suppress(OSError):
                part.unlink()


_MOST_QUEUED = 10_000
_MOST_HELD = 64 * 1024 * 1024  # characters of arguments and results in it
_HURRY = 2_500  # with so many entries, the thread does not wait for more
_MOMENT = 0.05  # seconds that entries wait in the queue; before, they wait as long to be made
_LONGEST_WAIT = 1.0  # seconds between syncs to disk, and between retries after a failure
_LONGEST_LINE = 1024 * 1024
_MOST_PARTS = 100


type _Queued = bytes | Entry
"""An entry as JSON, or one that the thread must render."""


class AuditWriter:
    """Appends entries to the file, which it opens at once.

    Raises StartError if it cannot be written.
    """

    def __init__(
        self,
        file: Path,
        *,
        largest: int = 100 * 1024 * 1024,
        oldest: float = 24 * 3600.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """The file is rotated at so many bytes, or at this age in seconds.

        Lines are forced onto the disk once a second, and at the end.
        """
        self._file = file
        self._largest, self._oldest = largest, oldest
        self._path = file  # or a part beside it
        self._follows = _is_own_link(file)  # one that comes later was put there by somebody else
        self._now = now
        self._queue: deque[_Queued] = deque()
        self._wake, self._hurry = Event(), Event()
        self._is_woken = False
        self._is_closing = False
        self._taken = self._given = 0  # characters kept by entries: queued so far, written so far
        self._lost = self._failed = self._told = 0  # entries; only one thread changes each count
        self._has_failed = False
        self._is_stuck = False  # the file cannot be rotated
        self._handle = -1
        self._is_synced = True
        self._synced_at = 0.0
        self._before = START
        self._size = 0
        self._begun = 0.0
        try:
            self._open()
        except OSError as error:
            what = f"Cannot write the audit log {file}"
            raise StartError(what, why=error.strerror or str(error)) from None
        self._thread = Thread(target=self._run, name="audit log", daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        """The file that is written now: the log, or a part of it."""
        return os.path.abspath(self._path)

    @property
    def dropped(self) -> int:
        """Lost entries that no line reports yet."""
        return self._lost + self._failed - self._told

    def write(self, entry: Entry) -> None:
        """Queue an entry; drop and count it if the queue is full."""
        queue = self._queue
        if len(queue) >= _MOST_QUEUED:
            self._lost += 1
            return
        try:
            queue.append(orjson.dumps(entry))
        except TypeError:  # a part of it must be made in the thread
            size = held_by(entry)
            if self._taken - self._given + size > _MOST_HELD:
                self._lost += 1
                return
            self._taken += size
            queue.append(entry)
        if not self._is_woken:  # wake the thread only once for several entries
            self._is_woken = True
            self._wake.set()
        elif len(queue) == _HURRY:
            self._hurry.set()

    def close(self) -> None:
        """Write what is queued, and close the file."""
        self._is_closing = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(timeout=5 * _LONGEST_WAIT)

    # In the thread

    def _run(self) -> None:
        is_open = True
        while is_open:
            entries, is_open = self._next()
            try:
                self._append(entries)
                self._sync_if_due()
            except Exception as error:
                self._fail(entries, error)
        if self._handle >= 0:
            with suppress(OSError):
                self._sync()
            os.close(self._handle)

    def _next(self) -> tuple[list[_Queued], bool]:
        """Return the queued entries, and whether more may come."""
        if self._wake.wait(_LONGEST_WAIT):
            self._hurry.wait(_MOMENT)  # more entries come meanwhile and are written together
            self._hurry.clear()
            self._wake.clear()
            self._is_woken = False
        is_open = not self._is_closing
        entries: list[_Queued] = []
        while self._queue and len(entries) < _MOST_QUEUED:
            entries.append(self._queue.popleft())
        if self._queue:
            self._wake.set()
        return entries, is_open

    def _append(self, entries: list[_Queued]) -> None:
        if self._handle >= 0 and not _leads_to(self._path, self._handle):  # moved or removed
            os.close(self._handle)
            self._handle = -1
        if self._handle < 0:
            self._open()
        rendered = [entry if isinstance(entry, bytes) else render(entry) for entry in entries]
        if dropped := self.dropped:
            rendered.insert(0, render(self._event("dropped", count=dropped)))
        if not rendered:
            self._rotate_if_due()
            return
        lines, last = link_all(rendered, self._before)
        self._put(lines)
        self._before = last
        self._told += dropped
        self._forget(entries)  # they are written, whatever happens now
        if self._has_failed:
            self._has_failed = False
            log.warning("The audit log %s can be written again", self._file)
        self._rotate_if_due()

    def _forget(self, entries: list[_Queued]) -> None:
        self._given += sum(held_by(entry) for entry in entries if isinstance(entry, dict))
        entries.clear()

    def _put(self, data: bytes) -> None:
        _write_whole(self._handle, data, self._size)
        self._size += len(data)
        self._is_synced = False

    def _fail(self, entries: list[_Queued], error: Exception) -> None:
        self._failed += len(entries)
        self._forget(entries)
        if not self._has_failed:
            self._has_failed = True
            log.error(
                "Cannot write the audit log %s: %s; lines are dropped and counted until it works",
                self._file,
                getattr(error, "strerror", None) or error,
            )
        if self._handle >= 0:
            with suppress(OSError):
                os.close(self._handle)
            self._handle = -1
        time.sleep(_LONGEST_WAIT / 10)

    def _sync_if_due(self) -> None:
        due = time.monotonic() - self._synced_at >= _LONGEST_WAIT
        if due and not self._is_synced and self._handle >= 0:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self._handle)
        self._is_synced, self._synced_at = True, time.monotonic()

    def _open(self) -> None:
        """Open the file; if another process writes it, a part. Raises OSError."""
        if not self._file.name:  # / or .
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        beside = (*parts_of(self._file), *_new_parts(self._file))
        for path in (self._path, *beside):
            try:
                handle = _open_log(path, follows=path == self._file and self._follows)
            except OSError:
                if path in beside[:-_MOST_PARTS]:  # it may be something else
                    continue
                raise
            try:
                if lock(handle) and _leads_to(path, handle):  # no other process has replaced it
                    self._size = os.fstat(handle).st_size
                    self._begun = self._begun_at(handle)
                    self._continue(handle, path)
                    self._handle, self._path = handle, path
                    return
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
        raise OSError(errno.EMFILE, "Too many other processes write it")

    def _begun_at(self, handle: int) -> float:
        """Return the time of the first line, so that the age counts across restarts."""
        now = self._now()
        first = os.pread(handle, _LONGEST_LINE, 0).partition(b"\n")[0]
        with suppress(ValueError, KeyError, TypeError):
            begun = datetime.fromisoformat(orjson.loads(first)["time"]).timestamp()
            return min(begun, now)  # the clock may have been set back
        return now

    def _continue(self, handle: int, path: Path) -> None:
        """Continue the chain of an existing file; log it if its last line was cut."""
        if not self._size:
            if self._handle < 0 and self._before == START:  # we have just started
                self._before = last_line_before(path)
            return
        tail = os.pread(handle, _LONGEST_LINE, max(0, self._size - _LONGEST_LINE))
        if not tail.endswith(b"\n"):
            torn = tail.rpartition(b"\n")[2]
            self._before = hash_of(torn)
            line = link(render(self._event("torn")), self._before)
            _write_whole(handle, b"\n" + line + b"\n", self._size)
            self._size = os.fstat(handle).st_size
            self._before = hash_of(line)
            return
        self._before = hash_of(tail[:-1].rpartition(b"\n")[2])

    def _event(self, event: str, **more: object) -> Entry:
        return {"v": 1, "time": Timestamps().write(self._now()), "event": event, **more}

    def _rotate_if_due(self) -> None:
        """Rotate a file that is large or old; the new file continues the chain."""
        is_old = self._now() - self._begun >= self._oldest
        if self._size < self._largest and not (is_old and self._size):
            return
        path = self._path
        try:
            aside, handle = put_aside(path, self._now())
        except OSError as error:  # the folder is not writable, but the file still works
            if not self._is_stuck:
                self._is_stuck = True
                why = error.strerror or error
                log.warning("Cannot rotate the audit log %s: %s; it keeps growing", path, why)
            return
        self._is_stuck = False
        os.close(self._handle)
        self._handle, self._size, self._begun = handle, 0, self._now()
        Thread(target=compress, args=(aside,), name="audit log gz", daemon=True).start()


def _is_own_link(path: Path) -> bool:
    """Tell whether a path is a link that this user, or the administrator, has made."""
    if sys.platform == "win32":
        return True
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISLNK(about.st_mode) and about.st_uid in (0, os.geteuid())


def _open_log(path: Path, *, follows: bool) -> int:
    """Open a file for appending. Raises OSError if it is something else than a log."""
    if not hasattr(os, "pread"):  # Windows
        raise OSError(errno.ENOSYS, "This system lacks what the chain of its lines needs")
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        handle = os.open(path, flags if follows else flags | _NO_LINK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP and not follows:
            raise OSError(errno.ELOOP, "It is a link that somebody else has put there") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):  # keep the mode of /dev/null
            raise OSError(errno.EINVAL, _NO_FILE)
        if not may_begin_log(os.pread(handle, _LONGEST_LINE, 0)):
            raise OSError(errno.EINVAL, "It contains something other than an audit log")
        os.fchmod(handle, 0o600)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _write_whole(handle: int, data: bytes, size: int) -> None:
    """Append to a file of this size. Raises OSError."""
    written = 0
    try:
        while written < len(data):
            written += os.write(handle, data[written:])
    except OSError:
        # Half a line would break the chain, so we remove what was written of it.
        with suppress(OSError):
            if os.fstat(handle).st_size > size:
                os.ftruncate(handle, size)
        raise


def _leads_to(path: Path, handle: int) -> bool:
    """Tell whether a path leads to an open file."""
    try:
        there, ours = os.stat(path), os.fstat(handle)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _new_parts(path: Path) -> list[Path]:
    """Return names for a new part: the same process id may be in use in another container."""
    own = os.getpid()
    return [path.with_name(f"{path.name}.pid{own + more}") for more in range(_MOST_PARTS)]
