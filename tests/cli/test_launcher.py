"""The command itself: what it says at once, and with which exit status it ends."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from mcp_tool_filter import __version__
from tests.cli.launched import ADDON, Typed, surroundings
from tests.rows import each_row
from tests.stdio_client import started, upstream


def _git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=me", "-c", "user.email=me@mail.example"]
    said = subprocess.check_output(["git", "-C", str(folder), *who, *words], text=True)
    return said.strip()


def _version_from(root: Path) -> str:
    """Return what ``--version`` says with our package below this folder, and without git."""
    (root / "addon").symlink_to(ADDON)
    command = [sys.executable, "-W", "error", "-m", "mcp_tool_filter", "--version"]
    env = {**surroundings(root), "PYTHONPATH": str(root / "addon"), "PATH": ""}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd="/")
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.parametrize("how", ["branch", "packed", "detached", "work tree"])
def test_version_from_a_clone_names_the_commit(how: str, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    _git(clone, "init", "-q", "-b", "a/branch")
    _git(clone, "commit", "-q", "--allow-empty", "-m", "one")
    commit = _git(clone, "rev-parse", "HEAD")
    if how == "packed":
        _git(clone, "pack-refs", "--all")
    elif how == "detached":
        _git(clone, "checkout", "-q", "--detach")
    elif how == "work tree":
        _git(clone, "worktree", "add", "-q", str(tmp_path / "other"))
        clone = tmp_path / "other"
    assert _version_from(clone) == f"mcp-tool-filter {__version__} (commit {commit})\n"


@pytest.mark.parametrize("head", [None, "", "ref: refs/heads/none", "ref:", "\0", "<b>", "../.."])
def test_version_names_no_commit_where_none_can_be_read(head: str | None, tmp_path: Path) -> None:
    if head is not None:
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git" / "HEAD").write_text(head)
    assert _version_from(tmp_path) == f"mcp-tool-filter {__version__}\n"


def test_an_installed_package_looks_for_no_commit(tmp_path: Path) -> None:
    """Its environment may well be in somebody's repository."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "mcp_tool_filter").symlink_to(ADDON / "mcp_tool_filter")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    env = {**surroundings(tmp_path), "PYTHONPATH": str(place)}
    command = [sys.executable, "-m", "mcp_tool_filter", "--version"]
    said = subprocess.check_output(command, text=True, env=env, cwd="/")
    assert said == f"mcp-tool-filter {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["-h", "--help"], ["--help", "--port", "no"]])
def test_help_has_examples_every_flag_and_the_exit_statuses(words: list[str], ran: Typed) -> None:
    out, err = ran(*words)
    for part in ("Examples:", "--deny PATTERN", "doctor", "Exit status:", "6273"):
        assert part in out
    assert (max(map(len, out.splitlines())) <= 100, err) == (True, "")


def test_a_short_help_fits_one_screen_and_names_the_whole(ran: Typed) -> None:
    for words in ([], ["wrap"], ["serve"], ["audit"], ["demo"]):
        out, err = ran(*words, "-h")
        lines = out.splitlines()
        assert (len(lines) < 24, max(map(len, lines)) <= 80, err) == (True, True, "")
        assert f"{' '.join(['mcp-tool-filter', *words])} --help" in out


def test_our_name_alone_shows_the_first_steps_on_a_few_lines(ran: Typed) -> None:
    out, err = ran()
    assert (len(out.splitlines()) <= 15, err) == (True, "")
    for part in ("demo", "--deny", "-- COMMAND", "--upstream URL", "wrap", "--help"):
        assert part in out


def test_a_mistake_gives_two_lines_on_stderr(ran: Typed) -> None:
    said = 'Error: Unsafe regex pattern detected: "(a+)+"\n'
    said += "Pattern could cause catastrophic backtracking\n"
    assert ran("-u", "http://localhost:1", "--deny", "(a+)+", status=1) == ("", said)


_SLOW = {"mitmproxy", "asyncio", "ssl", "h11", "orjson", "shutil", "urllib.parse"}
if sys.version_info < (3, 14):  # argparse imports them from then on, to colour its help
    _SLOW |= {"dataclasses", "inspect"}


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["--version"], _SLOW), (["--help"], _SLOW), (["completion", "bash"], _SLOW),
        (["check-pattern", "a"], {"mitmproxy", "asyncio"}),
        (["--list-tools", "--", *upstream()], {"mitmproxy"}),
    ],
    ids=lambda one: one[0] if type(one) is list else "",
)  # fmt: skip
def test_no_command_waits_for_slow_imports_that_it_does_not_need(
    words: list[str], slow: set[str], tmp_path: Path
) -> None:
    script = (
        "import sys; from mcp_tool_filter.cli.launcher import main; main(sys.argv[1:]);"
        "import json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, *words]
    ended = subprocess.run(command, capture_output=True, check=True, env=surroundings(tmp_path))
    loaded = set(json.loads(ended.stderr.splitlines()[-1]))
    assert not loaded & slow
    assert ended.stdout


def test_help_is_printed_also_where_not_all_letters_can_be(ran: Typed) -> None:
    out, err = ran("lock", "--help", PYTHONIOENCODING="ascii")
    assert ("[NAME \\u2026] FILE" in out, err) == (True, "")


@pytest.mark.parametrize("words", [["completion", "fish"], ["check-pattern", "a"]])
def test_a_closed_stdout_gives_no_traceback(words: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command, around = [sys.executable, "-m", "mcp_tool_filter", *words], surroundings(tmp_path)
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=around)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is full")
@pytest.mark.parametrize("words", [["--help"], ["completion", "fish"], ["rules", "schema"]])
def test_a_full_disk_behind_stdout_gives_two_lines(words: list[str], tmp_path: Path) -> None:
    command, around = [sys.executable, "-m", "mcp_tool_filter", *words], surroundings(tmp_path)
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=around)
    assert ended.returncode == 2
    assert ended.stderr == b"Error: Cannot write the output\nNo space left on device\n"


def test_a_lost_folder_gives_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    def know_nobody(_uid: int) -> NoReturn:  # as for a container's user
        raise KeyError

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = "Error: The current folder is gone\nGo to another one\n"
    assert typed("clients", status=1).err == said
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", know_nobody)
    assert typed("clients", status=1).err == "Error: Your home folder is not known\nSet HOME\n"


@pytest.mark.parametrize(
    "module",
    [
        "__init__.py",
        "__main__.py",
        "core/__init__.py",
        "core/errors.py",
        "cli/__init__.py",
        "cli/launcher.py",
    ],
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
def test_python_3_11_gets_one_sentence(ran: Typed) -> None:
    said = ran("--help", python="python3.11", status=None).err
    if "pyenv" in said:
        pytest.skip("there is no Python 3.11 here")
    assert said.startswith("Error: mcp-tool-filter needs Python 3.12 or newer; this is")


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
    with started(sys.executable, "-c", script, home=tmp_path) as process:
        assert process.ends() == 128 + signal.SIGTERM


@each_row(("typed", "status"), [
    ("--upstream http://127.0.0.1:1/mcp --deny x", 0), ("serve", 0), ("", 0), ("-- cat --json", 0),
    ("--list-tools --upstream http://127.0.0.1:1", 143), ("doctor", 143),
])  # fmt: skip
def test_a_signal_before_anything_runs_ends_a_proxy_well(typed: str, status: int) -> None:
    """Supervisors take another status for a failure."""
    script = f"""
import signal, sys
from mcp_tool_filter.cli import launcher
class Meets:
    def find_spec(self, name, *_):
        if name in ("mcp_tool_filter.cli.flags", "mcp_tool_filter.cli.table"):
            signal.raise_signal(signal.SIGTERM)
sys.meta_path.insert(0, Meets())
sys.exit(launcher.main({typed.split()!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (status, b"")


@pytest.mark.parametrize("words", [
    ("--stdio", "--upstream", "http://127.0.0.1:1"), ("--server=a",),
    ("--deny", "x", "--", "false"),
])  # fmt: skip
def test_a_clients_entry_imports_nothing_from_pythonpath(
    words: tuple[str, ...], tmp_path: Path, ran: Typed
) -> None:
    """The client has set it for the server."""
    for name in ("json", "asyncio", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('planted')")
    said = ran(*words, status=None, PYTHONPATH=str(tmp_path))
    assert "planted" not in said.err
