"""Replace a file atomically: a reader finds the old or the new content, never a part."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, *, keeps_mode: bool = False) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces ``path`` at the end of the block. Raises OSError.

    Only its user may read it, unless it keeps the mode and the owner of the old one. If the block
    raises, the old file stays.
    """
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keeps_mode:
            keep_owner(path, Path(partial))
            shutil.copymode(path, partial)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def keep_owner(old: Path, new: Path) -> None:
    """Give a new file the owner of an old one. Raises OSError if only root could."""
    before, now = old.stat(), new.stat()
    if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.chown(new, before.st_uid, before.st_gid)
