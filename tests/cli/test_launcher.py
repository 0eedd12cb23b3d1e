"""The command itself: what it says at once, and with which exit status it ends."""

from __future__ import annotations

import ast
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from mcp_tool_filter import __version__
from tests.cli.launched import ADDON, Typed, run, surroundings
from tests.stdio_client import upstream


def test_version_is_printed(tmp_path: Path) -> None:
    ended = run("--version", home=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, f"mcp-tool-filter {__version__}\n")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--help", "--port", "no"]])
def test_help_has_examples_every_flag_and_the_exit_statuses(
    words: list[str], tmp_path: Path
) -> None:
    ended = run(*words, home=tmp_path)
    assert ended.returncode == 0
    assert ended.stderr == ""
    for part in ("Examples:", "--deny PATTERN", "doctor", "Exit status:", "6273"):
        assert part in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 100


def test_our_name_alone_shows_the_first_steps_on_a_few_lines(tmp_path: Path) -> None:
    ended = run(home=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.splitlines()) <= 15
    for part in ("demo", "--deny", "-- COMMAND", "--upstream URL", "wrap", "--help"):
        assert part in ended.stdout


@pytest.mark.parametrize(
    ("words", "status", "stderr"),
    [
        (
            ["--dney", "^a"],
            2,
            "Error: There is no flag --dney: did you mean --deny?\nSee mcp-tool-filter --help\n",
        ),
        (
            ["--deny", "^a"],
            2,
            "Error: Missing --upstream URL\n"
            "Give its URL: mcp-tool-filter --upstream http://localhost:3000/mcp\n"
            "Or its command: mcp-tool-filter [FLAGS] -- COMMAND ARGS\n",
        ),
        (
            ["-u", "http://localhost:1", "--deny", "(a+)+"],
            1,
            'Error: Unsafe regex pattern detected: "(a+)+"\n'
            "Pattern could cause catastrophic backtracking\n",
        ),
    ],
)
def test_errors_give_two_lines_on_stderr(
    words: list[str], status: int, stderr: str, tmp_path: Path
) -> None:
    ended = run(*words, home=tmp_path)
    assert (ended.returncode, ended.stderr, ended.stdout) == (status, stderr, "")


_SLOW = {"mitmproxy", "asyncio", "ssl", "h11", "orjson", "shutil", "urllib.parse"}
if sys.version_info < (3, 14):  # argparse imports them from then on, to colour its help
    _SLOW |= {"dataclasses", "inspect"}


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["--version"], _SLOW),
        (["--help"], _SLOW),
        (["completion", "bash"], _SLOW),
        (["check-pattern", "a"], {"mitmproxy", "asyncio"}),
        (["--list-tools", "--", *upstream()], {"mitmproxy"}),
    ],
    ids=lambda one: one[0] if type(one) is list else "",
)
def test_no_command_waits_for_slow_imports_that_it_does_not_need(
    words: list[str], slow: set[str], tmp_path: Path
) -> None:
    script = (
        "import sys; from mcp_tool_filter.cli.launcher import main; main(sys.argv[1:]);"
        "import json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=True,
        env=surroundings(tmp_path),
    )
    loaded = set(json.loads(ended.stderr.splitlines()[-1]))
    assert not loaded & slow
    assert ended.stdout


def test_help_is_printed_also_where_not_all_letters_can_be(tmp_path: Path) -> None:
    ended = run("lock", "--help", home=tmp_path, environment={"PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "[NAME \\u2026] FILE" in ended.stdout


def test_a_closed_stdout_gives_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mcp_tool_filter", "completion", "fish"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=surroundings(tmp_path)
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is full")
@pytest.mark.parametrize("words", [["--help"], ["completion", "fish"], ["rules", "schema"]])
def test_a_full_disk_behind_stdout_gives_two_lines(words: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "mcp_tool_filter", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=surroundings(tmp_path),
        )
    assert ended.returncode == 2
    assert ended.stderr == "Error: Cannot write the output\nNo space left on device\n"


def test_a_lost_folder_gives_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    def know_nobody(_uid: int) -> NoReturn:  # as for a container's user
        raise KeyError

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert (
        typed("clients", status=1).err == "Error: The current folder is gone\nGo to another one\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", know_nobody)
    assert typed("clients", status=1).err == "Error: Your home folder is not known\nSet HOME\n"


@pytest.mark.parametrize(
    "module", ["__init__.py", "__main__.py", "errors.py", "cli/__init__.py", "cli/launcher.py"]
)
def test_an_older_python_can_run_the_version_check(module: str) -> None:
    source = (ADDON / "mcp_tool_filter" / module).read_text("utf-8")
    ast.parse(source, feature_version=(3, 9))


def test_no_frozen_class_is_called_with_its_type() -> None:
    """``Form[Json](…)`` of a frozen dataclass with slots is a TypeError in Python 3.12.1."""
    text = "".join(one.read_text("utf-8") for one in ADDON.rglob("*.py"))
    frozen = re.findall(r"@dataclass\(frozen=True, slots=True.*\)\nclass (\w+)\[", text)
    assert not re.findall(rf"\b(?:{'|'.join(frozen)})\[[^\n=]*\]\(.*", text)


@pytest.mark.skipif(not shutil.which("python3.11"), reason="there is no Python 3.11 here")
def test_python_3_11_gets_one_sentence(tmp_path: Path) -> None:
    ended = run("--help", home=tmp_path, python="python3.11")
    if "pyenv" in ended.stderr:
        pytest.skip("there is no Python 3.11 here")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: mcp-tool-filter needs Python 3.12 or newer; this is")
    assert "Traceback" not in ended.stderr


def test_a_signal_that_meets_an_import_is_not_lost(tmp_path: Path) -> None:
    """Python swallows what a handler raises in the callbacks of its imports."""
    script = """
import signal, time
from mcp_tool_filter.cli import launcher
launcher.end_on_sigterm(143)
swallowing = "try: signal.raise_signal(signal.SIGTERM)\\nexcept BaseException: pass"
exec(compile(swallowing, "<frozen importlib._bootstrap>", "exec"))
time.sleep(20)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=surroundings(tmp_path), timeout=60, check=False
    )
    assert done.returncode == 128 + signal.SIGTERM
