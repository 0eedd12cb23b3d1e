"""Fixtures of the tests of the mitmproxy adapter."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep registrations in a folder of the test, not in the user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
