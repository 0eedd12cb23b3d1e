"""Change the filter's core in small ways, one at a time, and see that a test fails for each.

``python -m tests.mutants`` runs every change of the four folders that decide what passes; with
``--every 10`` one of ten, the same ones each time; with names of files only theirs. A change that
no test notices must be listed in ``survivors.txt`` with the reason why it may live; one that is
listed there and is noticed now must leave the list. Either ends the run with status 1.

Each change runs in a process of its own and in its memory: no file is touched. Only the tests that
reach the changed line run, the quickest first, until one fails.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import signal
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import mitmproxy.http
import mitmproxy.test.tutils  # noqa: F401  # what takes long to import is there before the fork
import pytest

from tests.mutants.changes import Change, read_all

_CORE = Path("addon/mcp_tool_filter/core")
_FOLDERS = [_CORE / name for name in ("http", "policy", "conversation", "messages")]
_TESTS = ["tests/core", *map(str, _FOLDERS)]
_OPTIONS = [
    "-q",
    "-x",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
    "--assert=plain",
]
_SURVIVORS = Path(__file__).with_name("survivors.txt")
_LONGEST = 60.0
"""Seconds for the tests of one change: what hangs has been noticed."""

_MOST_SECONDS = 10.0
"""What the tests of other modules may take for a change, by the time that they took without it."""

_NO_TESTS = (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED)

_IMPORT = "import"
"""Stands for the tests of a line that runs when its module is imported."""


class _Reached:
    """A plugin of pytest: writes down which lines of the four folders each test runs."""

    def __init__(self, result: Path) -> None:
        self._result = result
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._now = _IMPORT
        self._paths = {
            str(path.resolve()): path for folder in _FOLDERS for path in folder.rglob("*.py")
        }
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutants")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self._note)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)

    def _note(self, code: CodeType, line: int) -> object:
        if path := self._paths.get(code.co_filename):
            self._tests[f"{path}:{line}"].add(self._now)
        return sys.monitoring.DISABLE  # until the next test begins

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now = item.nodeid
        sys.monitoring.restart_events()
        began = time.perf_counter()
        result = yield
        if item.nodeid not in self._failed:
            self._seconds[item.nodeid] = time.perf_counter() - began
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Leave out what fails while it is watched: the watching takes a frame of the stack."""
        tests = {place: sorted(names - self._failed) for place, names in self._tests.items()}
        self._result.write_text(json.dumps({"tests": tests, "seconds": self._seconds}))


def _reached(again: Path | None) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Return the tests of each line, and the seconds of each test."""
    with tempfile.TemporaryDirectory() as folder:
        result = again or Path(folder) / "reached"
        if not result.exists():
            child = os.fork()
            if not child:
                os._exit(_run([*_TESTS, "--maxfail=1000"], _Reached(result)))
            os.waitpid(child, 0)
        read = json.loads(result.read_text())
    return read["tests"], read["seconds"]


def _run(tests: list[str], *plugins: object) -> int:
    return int(pytest.main([*_OPTIONS, *tests], plugins=list(plugins)))


def _run_changed(change: Change, tests: list[str]) -> int:
    """Run tests in a process whose module is the changed one."""
    path = str(change.path.resolve())
    load = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        if loader.path != path:
            return load(loader, fullname)
        code: CodeType = compile(change.applied(), path, "exec", dont_inherit=True)
        return code

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    return _run(tests)


def _start(change: Change, tests: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    os.setsid()  # so that what hangs is ended with all that it has started
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    status = 1
    try:
        status = _run_changed(change, tests)
    finally:
        os._exit(status)


def _survivors(work: list[tuple[Change, list[str]]], jobs: int) -> Iterator[Change]:
    """Run the tests of each change; yield those that no test has noticed."""
    running: dict[int, tuple[Change, float]] = {}
    waiting = iter(work)
    while True:
        while len(running) < jobs and (one := next(waiting, None)):
            running[_start(*one)] = one[0], time.monotonic() + _LONGEST
        if not running:
            return
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended in running:
            change, _ = running.pop(ended)
            if os.waitstatus_to_exitcode(status) in (0, *_NO_TESTS):
                yield change
        elif not ended:
            now = time.monotonic()
            for child, (_, end) in running.items():
                if now > end:
                    os.killpg(child, signal.SIGKILL)
            time.sleep(0.02)


def _listed() -> dict[str, str]:
    """Return the changes that may live, each with its reason: a line each, `CHANGE | REASON`."""
    lines = _SURVIVORS.read_text().splitlines() if _SURVIVORS.exists() else []
    pairs = (line.rpartition(" | ") for line in lines if line and not line.startswith("#"))
    return {name.strip(): reason.strip() for name, _, reason in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("files", nargs="*", type=Path, help="only the changes of these modules")
    parser.add_argument("--every", type=int, default=1, help="run one change of N")
    parser.add_argument("--only", default="", help="those with this text in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--reached", type=Path, help="keep here which test reaches which line")
    options = parser.parse_args()
    tests_of, seconds = _reached(options.reached)
    work = []
    every = list(read_all(_FOLDERS))
    for change in read_all(options.files) if options.files else every:
        if options.only not in change.name or zlib.crc32(change.name.encode()) % options.every:
            continue
        tests = {test for test in tests_of.get(change.place, ()) if test != _IMPORT}
        if _IMPORT in tests_of.get(change.place, ()):
            tests.update(_of_the_module(change, tests_of))
        # The first test alone may reach what is cached.
        tests.update(test for test in seconds if _own_file(change) in test)
        work.append((change, _chosen(change, tests, seconds)))
    listed = _listed()
    gone = listed.keys() - {change.name for change in every}
    for name in sorted(gone):
        print(f"GONE {name}: take it off the list")
    unlisted = 0
    survived = set()
    for change in _survivors([one for one in work if one[1]], options.jobs):
        survived.add(change.name)
        if change.name not in listed:
            unlisted += 1
            print(f"SURVIVED {change.path}:{change.line} {change.name}", flush=True)
    for change, chosen in work:
        if not chosen and change.name not in listed:
            unlisted += 1
            print(f"NOT REACHED {change.path}:{change.line} {change.name}", flush=True)
    noticed = {change.name for change, chosen in work if chosen} - survived
    for name in sorted(noticed & listed.keys()):
        print(f"NOTICED NOW {name}: take it off the list")
    print(f"{len(work)} changes, {len(survived)} survived, {unlisted} of them without a reason")
    return 1 if unlisted or gone or noticed & listed.keys() else 0


def _chosen(change: Change, tests: set[str], seconds: dict[str, float]) -> list[str]:
    """Return the tests of the module's own file, its folder's, then the quickest, for some time."""
    own = _own_file(change)
    folder = f"/{change.path.parent.name}/"
    chosen = sorted(
        tests, key=lambda test: (own not in test, folder not in test, seconds.get(test, 0.0))
    )
    left = _MOST_SECONDS
    for number, test in enumerate(chosen):
        if own not in test:
            left -= seconds.get(test, 0.0)
        if left < 0:
            return chosen[: number + 1]
    return chosen


def _own_file(change: Change) -> str:
    return f"/{change.path.parent.name}/test_{change.path.stem}.py::"


def _of_the_module(change: Change, tests_of: dict[str, list[str]]) -> set[str]:
    """Return the tests that reach the functions of a module: for what runs at its import."""
    prefix = f"{change.path}:"
    places = [names for place, names in tests_of.items() if place.startswith(prefix)]
    return {name for names in places for name in names if name != _IMPORT}


if __name__ == "__main__":
    sys.exit(main())
