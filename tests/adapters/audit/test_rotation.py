from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.audit.rotation import compress, free_name

NOON = 1763467200.0  # 2025-11-18T12:00:00Z


def test_a_full_file_is_named_after_the_time(tmp_path: Path) -> None:
    assert free_name(tmp_path / "a.jsonl", NOON).name == "a.jsonl.20251118T120000Z"


@pytest.mark.parametrize("taken", ["a.jsonl.20251118T120000Z", "a.jsonl.20251118T120000Z.gz"])
def test_a_name_in_use_is_never_given_again(tmp_path: Path, taken: str) -> None:
    """Two rotations may fall into one second; neither may replace the other's file."""
    (tmp_path / taken).touch()
    assert free_name(tmp_path / "a.jsonl", NOON).name == "a.jsonl.20251118T120000Z-1"


def test_the_compressed_file_replaces_the_full_one(tmp_path: Path) -> None:
    full = tmp_path / "a.jsonl.20251118T120000Z"
    full.write_bytes(b'{"n":1}\n')
    compress(full)
    [packed] = tmp_path.iterdir()
    assert packed.name == "a.jsonl.20251118T120000Z.gz"
    assert gzip.decompress(packed.read_bytes()) == b'{"n":1}\n'
    assert packed.stat().st_mode & 0o777 == 0o600


def test_a_full_file_stays_if_it_cannot_be_compressed(tmp_path: Path) -> None:
    full = tmp_path / "a.jsonl"
    full.write_bytes(b"{}\n")
    (tmp_path / ".a.jsonl.gz").mkdir()
    compress(full)
    assert full.read_bytes() == b"{}\n"
