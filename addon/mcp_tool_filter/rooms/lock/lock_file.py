"""Read and write the file of a lock. (``rooms/lock/lock`` knows what is in it.)"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mcp_tool_filter.cli.whole_file import read_whole, replace_if_unchanged, whole_file
from mcp_tool_filter.core.errors import LockError, reason_of
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.rooms.lock.lock import (
    Lock,
    looks_like_lock,
    parse_lock,
    render_lock,
)

_LARGEST = 256 * 1024 * 1024  # bytes; a list of tools has at most 80 MB


class UnusableLock(LockError):
    def __init__(self, verb: str, path: str, why: str, hint: str | None = None) -> None:
        super().__init__(f"Cannot {verb} the lock: {path}", why=why, hint=hint)


def read_lock(path: str) -> Lock:
    """Read a lock. Raises StartError."""
    return parse_lock(read_bytes(path), path)


def with_lock(config: Config, known: Config | None = None) -> Config:
    """Return the configuration with its lock, if it names one; that of a ``known`` configuration
    that names the same file is not read again. Raises StartError."""
    if not config.lock or config.choice.lock is not None:
        return config
    lock = known.choice.lock if known is not None and known.lock == config.lock else None
    return replace(config, choice=replace(config.choice, lock=lock or read_lock(config.lock)))


def lock_of(config: Config) -> Lock | None:
    """Return the lock that is in force."""
    lock = config.choice.lock
    return lock if isinstance(lock, Lock) else None


def read_bytes(path: str) -> bytes:
    """Read the file of a lock. Raises StartError."""
    try:
        raw = read_whole(str(Path(path).expanduser()), _LARGEST)
    except FileNotFoundError as error:
        hint = f"mcp-tool-filter lock {path} --upstream URL writes it"
        raise UnusableLock("read", path, reason_of(error), hint) from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        raise UnusableLock("read", path, why) from None
    if len(raw) > _LARGEST:
        raise UnusableLock("read", path, f"It is larger than {_LARGEST} bytes")
    return raw


def write_lock(path: str, lock: Lock) -> bool:
    """Write a lock; return False if the file has these bytes already. Raises StartError.

    The file keeps its mode and owner; a link stays a link. A file that is no lock stays, because
    its name may be a slip.
    """
    file, new = Path(os.path.realpath(Path(path).expanduser())), render_lock(lock)
    old = read_bytes(path) if file.exists() else None
    if old is not None and old.strip() and not looks_like_lock(old):
        raise UnusableLock("write", path, "The file is there, and it is not a lock")
    if old == new:
        return False
    replace_lock(path, old, new)
    return True


def replace_lock(path: str, old: bytes | None, new: bytes) -> None:
    """Write the bytes of a lock in the place of the old ones; None if there is no file. Raises
    StartError, also if somebody else has changed the file meanwhile."""
    file = Path(os.path.realpath(Path(path).expanduser()))
    try:
        if old is None:
            with whole_file(file) as written:
                written.write(new)
            with suppress(OSError):
                file.chmod(0o666 & ~_umask())  # it is for a repository, so others may read it
        elif not replace_if_unchanged(file, old, new):
            raise UnusableLock("write", path, "Another program has changed it; try again")
    except OSError as error:
        raise UnusableLock("write", path, reason_of(error)) from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
