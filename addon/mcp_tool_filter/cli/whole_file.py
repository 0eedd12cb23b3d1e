"""Replace a file atomically: a reader finds the old or the new content, never a part; or lock
one.

Most programs only read, so what only writing needs is imported then.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IMODE, S_ISFIFO, S_ISREG
from typing import BinaryIO


def open_at_once(path: str, flags: int) -> int:
    """Open a file (for ``open``) without waiting for another program, as a named pipe would."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0), 0o666)


_FROM_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # as <(COMMAND) names it
_LARGEST = 64 * 1024 * 1024


def read_whole(path: str, most: int = _LARGEST) -> bytes:
    """Return what is in a file, at most so many bytes and one. Raises OSError, also for what may
    never end, such as a named pipe or a device."""
    with open(path, "rb", opener=open_at_once) as file:
        kind = os.fstat(file.fileno()).st_mode
        if S_ISFIFO(kind) and path.startswith(_FROM_SHELL):
            os.set_blocking(file.fileno(), True)
        elif not S_ISREG(kind) and path != os.devnull:
            raise OSError(0, "It is not a regular file")
        return file.read(most + 1)


def try_lock(handle: int) -> bool:
    """Lock an open file until it is closed; False if another process has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces ``path`` at the end of the block. Raises OSError.

    Only its user may read it. If the block raises, the old file stays.
    """
    with _file_beside(path) as (file, ours):
        yield file
        _save(file)
        os.replace(ours, path)


def replace_if_unchanged(path: Path, old: bytes, new: bytes) -> bool:
    """Replace a file, but only if it still has its old content; keep its mode and its owner. Raises
    OSError, also for a file that nobody may write.

    Another program may save the file at any moment. So we exchange the two files where the system
    can, and look at what we have taken away: if it is something else, it goes back.
    """
    if not path.stat().st_mode & 0o222:  # its folder may well be writable
        raise PermissionError(errno.EACCES, "It is read-only")
    with _file_beside(path) as (file, ours):
        file.write(new)
        _save(file)
        _keep_owner(path, ours)
        ours.chmod(S_IMODE(path.stat().st_mode))
        if path.read_bytes() != old:
            return False
        if not _exchange(ours, path):
            os.replace(ours, path)
            return True
        if ours.read_bytes() == old:
            return True
        _exchange(ours, path)
        if ours.read_bytes() != new:  # it was saved once more meanwhile: that is the newest
            _exchange(ours, path)
        return False


@contextmanager
def _file_beside(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a new file in the same folder; remove what has its name at the end."""
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)


def _save(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()  # Windows replaces no open file


def _keep_owner(old: Path, new: Path) -> None:
    """Give a new file the owner of an old one. Raises OSError if only root could."""
    before, now = old.stat(), new.stat()
    if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.chown(new, before.st_uid, before.st_gid)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two files in one step; False if the system cannot."""
    import ctypes

    names = os.fsencode(one), os.fsencode(other)
    try:
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return bool(libc.renamex_np(*names, 2) == 0)
        here = -100  # AT_FDCWD: names are relative to the current folder
        return bool(libc.renameat2(here, names[0], here, names[1], 2) == 0)
    except (OSError, AttributeError, TypeError):  # Windows, or an old system
        return False
