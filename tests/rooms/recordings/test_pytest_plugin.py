"""The plugin in a user's project, in its own pytest process."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proxy import REPOSITORY

pytestmark = pytest.mark.rest

RECORDING = REPOSITORY / "recordings" / "mcp1-streamable-json.flow"
PLUGIN = "mcp_tool_filter.rooms.recordings.pytest_plugin"  # installed: the entry point


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with one recording and its transcript."""
    (tmp_path / "recordings").mkdir()
    shutil.copy(RECORDING, tmp_path / "recordings" / "session.flow")
    run(tmp_path, "--mcp-recordings", "recordings", "--mcp-deny", "^delete_", "--mcp-update")
    return tmp_path


def run(project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # Where we are installed, autoload would load the plugin twice.
    more = {"PYTHONPATH": str(REPOSITORY / "addon"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-W", "error", "-v", *args],
        check=False, capture_output=True, text=True, cwd=project, env={**os.environ, **more},
    )  # fmt: skip


def test_recordings_are_tests_without_any_code(project: Path) -> None:
    done = run(project, "--mcp-recordings", "recordings", "--mcp-deny", "^delete_")
    names = ["denied tools leave no trace", "everything else passes unchanged"]
    for name in (*names, "the transcript is the one that was kept"):
        assert f"session.flow::{name} PASSED" in done.stdout
    assert "3 passed" in done.stdout


def test_a_changed_policy_shows_as_a_difference(project: Path) -> None:
    done = run(project, "--mcp-recordings", "recordings", "--mcp-deny", "^read_")
    assert "1 failed, 2 passed" in done.stdout
    assert "The transcript differs from session.transcript.txt" in done.stdout
    assert "+upstream gets   nothing" in done.stdout
    wrong = run(project, "--mcp-recordings", "recordings", "--mcp-deny", "(a+)+")
    assert 'Error: Unsafe regex pattern detected: "(a+)+"' in wrong.stdout
    assert "Traceback" not in done.stdout + wrong.stdout


def test_a_missing_transcript_says_how_to_make_one(project: Path) -> None:
    (project / "recordings" / "session.transcript.txt").unlink()
    done = run(project, "--mcp-recordings", "recordings")
    assert "There is no transcript session.transcript.txt yet. Write it, and look" in done.stdout
    # Twice where CI is set: pytest then shows whole messages in its summary as well.
    command, *_ = [one for one in done.stdout.splitlines() if one.strip().startswith("pytest ")]
    again = run(project, *shlex.split(command)[1:])
    assert "3 passed" in again.stdout
    assert "3 passed" in run(project, "--mcp-recordings", "recordings").stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("recordings/session.flow", "this is a file; name its folder: --mcp-recordings recordings"),
        ("nowhere", "there is no such folder"),
        ("empty", "no recording (*.flow) is in this folder; make one with: "
                  "mcp-tool-filter --upstream URL --record empty/session.flow"),
    ],
)  # fmt: skip
def test_a_folder_without_recordings_is_an_error(project: Path, given: str, said: str) -> None:
    """Without recordings there are no tests, and no tests look like success."""
    (project / "empty").mkdir()
    (project / "test_own.py").write_text("def test_own():\n    pass\n")
    done = run(project, "--mcp-recordings", given)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --mcp-recordings {given}: {said}" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("args", "path", "folder"),
    [
        ([], "recordings/session.flow", "tests"),
        (["--mcp-recordings", "recordings"], "session.flow", "tests"),
        ([], "session.flow", "recordings"),
    ],
)
def test_a_path_is_looked_up_here_in_the_recordings_folder_and_beside_the_test(
    project: Path, args: list[str], path: str, folder: str
) -> None:
    (project / folder).mkdir(exist_ok=True)
    (project / folder / "test_policy.py").write_text(
        f"def test_it_lists(mcp_replay):\n    assert mcp_replay({path!r}).listed_before\n"
    )
    assert "1 passed" in run(project, folder, *args, "-k", "test_it_lists").stdout


def test_the_plugin_imports_nothing_without_recordings(tmp_path: Path) -> None:
    """It is loaded by every pytest in an environment where we are installed."""
    (tmp_path / "test_imports.py").write_text(
        "import sys\n"
        "def test_imports():\n"
        "    assert 'mcp_tool_filter.rooms.recordings.pytest_plugin' in sys.modules\n"
        "    assert 'mitmproxy' not in sys.modules\n"
        "    assert 'mcp_tool_filter.rooms.recordings.replay' not in sys.modules\n"
    )
    done = run(tmp_path)
    assert "1 passed" in done.stdout, done.stdout
