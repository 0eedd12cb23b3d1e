"""The script for ``mitmdump -s``, wherever we are installed."""

from __future__ import annotations

from pathlib import Path

from tests.cli.launched import ADDON, run


def test_the_path_is_one_line_for_use_in_another_command(tmp_path: Path) -> None:
    ended = run("addon-path", home=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert Path(ended.stdout.strip()) == ADDON / "tool_filter.py"
