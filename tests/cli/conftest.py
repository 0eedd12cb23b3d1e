"""What the tests of the command line share."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.launcher import main
from tests.cli.launched import Said, Typed


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run a command in this process, which ends with this status.

    It returns what was printed since a test has looked, also by commands before it.
    """

    def typed(*words: object, status: int = 0) -> Said:
        assert main([str(word) for word in words]) == status, capsys.readouterr().err
        return Said(*capsys.readouterr())

    return typed
