"""A pytest plugin that replays recorded sessions as tests.

    pytest --mcp-recordings recordings --mcp-deny '^file_' --mcp-update    # the first time
    pytest --mcp-recordings recordings --mcp-deny '^file_'                 # from then on

Each recording becomes three tests: denied tools leave no trace, everything else passes unchanged,
and the transcript is the one that is kept beside the recording (``--mcp-update`` writes it). Tests
of your own may use two fixtures, ``mcp_replay`` and ``mcp_recorded_upstream``: see
``mcp_tool_filter.testing``. A relative path is looked for in the folder you are in, in the folder
of ``--mcp-recordings``, and beside the test.

pytest loads this file at every start, so it imports nothing that it does not need yet.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.recordings.recorded_upstream import McpRecordedUpstream
    from mcp_tool_filter.rooms.recordings.replay import McpReplay
    from mcp_tool_filter.rooms.recordings.transcript import Transcript

_MOST_LINES = 60
_SUFFIX = ".transcript.txt"

type Check = Callable[[RecordingFile], Iterator[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mcp", "recorded MCP sessions")
    group.addoption(
        "--mcp-recordings",
        metavar="DIR",
        help="replay the recordings (*.flow) of this folder as tests",
    )
    group.addoption(
        "--mcp-deny", action="append", default=[], metavar="REGEX", help="tools that are removed"
    )
    group.addoption(
        "--mcp-allow", action="append", default=[], metavar="REGEX", help="only these tools remain"
    )
    group.addoption(
        "--mcp-update", action="store_true", help="write the transcripts beside the recordings"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (folder := _folder(config)) is None:
        return
    if problem := _problem_in(folder):
        raise pytest.UsageError(f"--mcp-recordings {config.getoption('mcp_recordings')}: {problem}")
    if str(folder) not in config.args:
        config.args.append(str(folder))


def _problem_in(folder: Path) -> str | None:
    if folder.is_file():
        return f"this is a file; name its folder: --mcp-recordings {_shown(folder.parent)}"
    if not folder.is_dir():
        return "there is no such folder"
    if not any(folder.rglob("*.flow")):
        return (
            "no recording (*.flow) is in this folder; make one with: "
            f"mcp-tool-filter --upstream URL --record {_shown(folder)}/session.flow"
        )
    return None


def _shown(folder: Path) -> str:
    """Return a folder as the user would type it."""
    is_below = folder.is_relative_to(Path.cwd())
    return shlex.quote(str(folder.relative_to(Path.cwd()) if is_below else folder))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    folder = _folder(parent.config)
    if folder is None or file_path.suffix != ".flow" or folder not in file_path.parents:
        return None
    return RecordingFile.from_parent(parent, path=file_path)


@pytest.fixture
def mcp_replay(request: pytest.FixtureRequest) -> McpReplay:
    """Replay a recording: ``mcp_replay(path, deny=…, allow=…)`` returns its transcript."""

    def run(path: str | Path, **options: Any) -> Transcript:
        return _replay(_found(path, request), **options)

    return run


@pytest.fixture
def mcp_recorded_upstream(request: pytest.FixtureRequest) -> Iterator[McpRecordedUpstream]:
    """Let a recording answer clients: ``mcp_recorded_upstream(path)`` returns its URL."""
    with ExitStack() as stack:

        def run(path: str | Path) -> str:
            from mcp_tool_filter.rooms.recordings.flow_dump import read_recording
            from mcp_tool_filter.rooms.recordings.recorded_upstream import running_upstream

            recording = read_recording(_found(path, request))
            return stack.enter_context(running_upstream(recording)).url

        yield run


def _found(path: str | Path, request: pytest.FixtureRequest) -> Path:
    folders = [Path.cwd(), _folder(request.config), request.path.parent]
    candidates = [folder / path for folder in folders if folder]
    return next((candidate for candidate in candidates if candidate.is_file()), Path(path))


class RecordingFile(pytest.File):
    """One recording, which is replayed once for all its tests."""

    _transcript: Transcript | None = None

    def collect(self) -> Iterator[pytest.Item]:
        for name, check in _CHECKS.items():
            yield RecordingItem.from_parent(self, name=name, check=check)

    def transcript(self) -> Transcript:
        if self._transcript is None:
            option = self.config.getoption
            deny, allow = option("mcp_deny"), option("mcp_allow")
            self._transcript = _replay(self.path, deny=deny, allow=allow)
        return self._transcript


class RecordingItem(pytest.Item):
    """One check of a recording."""

    def __init__(self, *, check: Check, **more: Any) -> None:
        super().__init__(**more)
        self._check = check

    def runtest(self) -> None:
        assert isinstance(self.parent, RecordingFile)
        if found := list(self._check(self.parent)):
            raise Broken("\n".join(found))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str:
        if excinfo.errisinstance(Broken):
            return str(excinfo.value)
        from mcp_tool_filter.core.errors import StartError

        if excinfo.errisinstance(StartError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.path.name}: {self.name}"


class Broken(Exception):
    """A check failed; the text says where."""


def _replay(path: Path, **options: Any) -> Transcript:
    from mcp_tool_filter.rooms.recordings.flow_dump import read_recording
    from mcp_tool_filter.rooms.recordings.replay import replay

    return replay(read_recording(path), **options)


def _leaks(file: RecordingFile) -> Iterator[str]:
    from mcp_tool_filter.rooms.recordings.transcript import find_leaks

    return find_leaks(file.transcript())


def _changes(file: RecordingFile) -> Iterator[str]:
    from mcp_tool_filter.rooms.recordings.transcript import find_changes

    return find_changes(file.transcript())


def _differences(file: RecordingFile) -> Iterator[str]:
    kept = file.path.with_name(file.path.stem + _SUFFIX)
    now = file.transcript().render()
    if file.config.getoption("mcp_update"):
        kept.write_text(now, "utf-8")
    elif not kept.is_file():
        yield f"There is no transcript {kept.name} yet. Write it, and look at it:"
        yield f"  {_command(file.config)}"
    elif (before := kept.read_text("utf-8")) != now:
        yield f"The transcript differs from {kept.name}. If this is intended, write it again:"
        yield f"  {_command(file.config)}"
        lines = difflib.unified_diff(before.split("\n"), now.split("\n"), lineterm="", n=1)
        yield from [line[:200] for line in lines][2 : _MOST_LINES + 2]


def _command(config: pytest.Config) -> str:
    """Return the command that writes the transcripts."""
    return shlex.join(["pytest", *config.invocation_params.args, "--mcp-update"])


_CHECKS: dict[str, Check] = {
    "denied tools leave no trace": _leaks,
    "everything else passes unchanged": _changes,
    "the transcript is the one that was kept": _differences,
}


def _folder(config: pytest.Config) -> Path | None:
    folder = config.getoption("mcp_recordings", None)
    return (config.invocation_params.dir / folder).resolve() if folder else None
