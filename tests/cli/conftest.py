"""What the tests of the command line share."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.launcher import main
from tests.cli.launched import Said, Typed


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run a command in this process, which ends with this status; return what it printed."""

    def typed(*words: object, status: int = 0) -> Said:
        capsys.readouterr()
        assert main([str(word) for word in words]) == status, capsys.readouterr().err
        return Said(*capsys.readouterr())

    return typed
