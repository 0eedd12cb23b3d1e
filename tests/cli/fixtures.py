"""Fixtures for tests that type commands; the conftest of a folder takes them from here."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.cli.terminal import set_status
from tests.cli.launched import Said, Typed, run


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Leave what a command run in this process changes as it was: the logging, and the status."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    set_status("")
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.disable(logging.NOTSET)  # a replay is silent


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run a command in this process, which ends with this status (None: 1 or 2).

    It returns what was printed since a test has looked, also by commands before it.
    """

    def typed(*words: object, status: int | None = 0) -> Said:
        ended = main([str(word) for word in words])
        said = Said(*capsys.readouterr())
        assert ended in ((1, 2) if status is None else (status,)), said.err
        assert "Traceback" not in said.err
        return said

    return typed


@pytest.fixture
def ran(tmp_path: Path) -> Typed:
    """Run a command in a process of its own, which ends with this status (None: not with 0)."""

    def ran(
        *words: object, status: int | None = 0, python: str = sys.executable, **environment: str
    ) -> Said:
        done = run(*map(str, words), home=tmp_path, environment=environment, python=python)
        assert done.returncode == status or (status is None and done.returncode), done.stderr
        assert "Traceback" not in done.stderr
        return Said(done.stdout, done.stderr)

    return ran


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who works in ~/project, and has set nothing."""
    for name in os.environ:
        if name.startswith(("XDG_", "MCP_")) or name.endswith(("_HOME", "_CONFIG_DIR", "_ROOT")):
            monkeypatch.delenv(name)
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path
