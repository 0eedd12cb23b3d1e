"""Rename and compress a full file of the audit log."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)


def free_name(path: Path, now: float) -> Path:
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
