"""An audit log that is written in a test, and what is in it."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mcp_tool_filter.adapters.watch.audit_log import AuditWriter
from tests.raw_upstream import TIMEOUT


def lines_in(path: Path) -> list[bytes]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return raw.splitlines()


def eventually(is_true: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def writing(path: Path, **settings: object) -> Iterator[AuditWriter]:
    opened = AuditWriter(path, **settings)  # type: ignore[arg-type]  # few, and named
    try:
        yield opened
    finally:
        opened.close()
