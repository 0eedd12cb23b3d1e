"""A service with a made-up host, and one client of it."""

from __future__ import annotations

import pytest

from tests.core.engine.table import Client, Table


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def client(table: Table) -> Client:
    return table.client()
