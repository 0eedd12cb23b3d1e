"""What carries out the orders of rules."""

from __future__ import annotations

import pytest

from tests.rooms.rules.judging import Host


@pytest.fixture
def host() -> Host:
    return Host()
