"""A listener before an upstream that has ``read`` and the denied ``rm``."""

from __future__ import annotations

import pytest

from mcp_tool_filter.core.http.listener import Listener
from tests.core.http.listening import listener


@pytest.fixture
def door() -> Listener:
    return listener()
