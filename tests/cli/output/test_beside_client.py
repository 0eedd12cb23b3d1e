from __future__ import annotations

import os
import sys

import pytest

from mcp_tool_filter.cli.output.beside_client import say_beside_client


def test_a_text_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """stdout belongs to the client's messages."""
    say_beside_client("hidden: 3 tools")
    assert capsys.readouterr() == ("", "hidden: 3 tools\n")


def test_a_client_may_close_our_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        say_beside_client("nobody reads this")
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            closed.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())
