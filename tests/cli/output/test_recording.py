"""``--record`` in front of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
from mcp_tool_filter.cli.output.recording import open_recorder
from mcp_tool_filter.errors import InvalidOption
from mcp_tool_filter.policy.verdict import Forward
from tests.make import answering, asking


def record(path: str) -> None:
    recorder = open_recorder(path)
    recorder.from_client(asking("ping"), Forward())
    recorder.from_upstream(answering("{}"), Forward())
    recorder.end()


def test_a_recording_is_private_and_is_replaced_or_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "s.flow"
    counts = []
    for path in (str(file), str(file), f"+{file}"):
        record(path)
        counts.append(len(read_flows(file)))
    assert counts == [1, 1, 2]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption) as caught:
        open_recorder(str(tmp_path / "missing" / "s.flow"))
    assert caught.value.why == "No such file or directory"
