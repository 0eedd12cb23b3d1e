"""Registrations outlive the process, in a file that only its user can read."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.oauth.store import KeptRegistrations
from mcp_tool_filter.http.logins_through import Registrations

URI = "http://127.0.0.1:1/cb"
UPSTREAM = "https://mcp.example"


async def register(folder: Path, name: str) -> Registrations:
    registrations = Registrations()
    registrations.keep(name, registrations.begin((URI,), "http://localhost"))
    await KeptRegistrations(folder, UPSTREAM).write(registrations)
    return registrations


async def test_only_the_user_can_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    await register(folder, "a")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_processes_add_to_the_same_file(tmp_path: Path) -> None:
    await asyncio.gather(*[register(tmp_path, f"client-{number}") for number in range(8)])
    found = Registrations()
    await KeptRegistrations(tmp_path, UPSTREAM).read_into(found)
    assert all(found.of(f"client-{number}") for number in range(8))
    other = Registrations()
    await KeptRegistrations(tmp_path, "https://other.example").read_into(other)
    assert other.of("client-0") is None


async def test_a_running_process_reads_what_another_writes(tmp_path: Path) -> None:
    kept, found = KeptRegistrations(tmp_path, UPSTREAM), Registrations()
    await kept.read_into(found)
    before = await register(tmp_path, "a")
    await kept.read_into(found)
    assert found.of("a") == before.of("a")


@pytest.mark.parametrize("content", [b"nonsense", b"{}", b"[" * 100_000])
async def test_a_broken_file_is_reported_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    KeptRegistrations(tmp_path, UPSTREAM).path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        await register(tmp_path, "a")
    assert "Clients must register again after a restart" in caplog.text
    found = Registrations()
    await KeptRegistrations(tmp_path, UPSTREAM).read_into(found)
    assert found.of("a")


async def test_a_folder_that_cannot_be_written_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        registrations = await register(blocked / "below", "a")
    assert registrations.of("a")
    assert "Clients must register again after a restart" in caplog.text
