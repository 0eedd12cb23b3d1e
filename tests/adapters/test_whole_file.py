"""A file is replaced as a whole or stays as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.whole_file import replace_if_unchanged, whole_file


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def write_half_of(file: Path) -> None:
    with whole_file(file) as new:
        new.write(b"half")
        raise ZeroDivisionError


def test_new_content_replaces_the_old(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    file.chmod(0o644)
    with whole_file(file) as new:
        new.write(b"new")
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"
    assert mode(file) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        write_half_of(file)
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / ("é" * 127)
    with whole_file(file) as new:
        new.write(b"new")
    assert file.read_bytes() == b"new"


def test_the_owner_of_the_old_file_can_be_kept(tmp_path: Path) -> None:
    """What root has edited stays readable for its user."""
    file = tmp_path / "file"
    file.touch()
    owner = 4321 if os.geteuid() == 0 else os.geteuid()
    os.chown(file, owner, -1)
    assert replace_if_unchanged(file, b"", b"new")
    assert file.stat().st_uid == owner


def test_a_file_whose_owner_cannot_be_kept_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    stat = Path.stat

    def of_another(path: Path) -> os.stat_result:
        found = stat(path)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if path == file else found

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "stat", of_another)
    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(PermissionError):
        replace_if_unchanged(file, b"old", b"new")
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
