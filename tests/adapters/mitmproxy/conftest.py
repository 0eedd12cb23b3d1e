"""Fixtures of the tests of the mitmproxy adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collector import Collector, collector


@pytest.fixture
def own_config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep registrations in a folder of the test, not in the user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def sent_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector that the filter sends its spans to."""
    with collector() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running
