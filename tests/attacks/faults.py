"""Raises an exception at a line of our code while a real proxy serves: what passes then?

A run first notes each line of the package that a scenario executes. Then the scenario runs once
for each of them, and that line raises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import mcp_tool_filter

_PACKAGE = str(Path(mcp_tool_filter.__file__).parent)
_TOOL = 4  # one of the numbers that sys.monitoring leaves to anybody
_LINE = sys.monitoring.events.LINE


class Bug(Exception):
    """What a line raises that has a bug."""


@dataclass(frozen=True)
class Place:
    code: CodeType
    line: int

    def __str__(self) -> str:
        file = Path(self.code.co_filename).relative_to(_PACKAGE)
        return f"{file}:{self.line} ({self.code.co_qualname})"


@contextmanager
def _monitoring() -> Iterator[None]:
    sys.monitoring.use_tool_id(_TOOL, "faults")
    try:
        yield
    finally:
        sys.monitoring.set_events(_TOOL, 0)
        sys.monitoring.register_callback(_TOOL, _LINE, None)
        sys.monitoring.free_tool_id(_TOOL)


@contextmanager
def noting_lines() -> Iterator[list[Place]]:
    """Note each line of ours that runs, once, in order."""
    places: list[Place] = []

    def note(code: CodeType, line: int) -> object:
        if code.co_filename.startswith(_PACKAGE):
            places.append(Place(code, line))
        return sys.monitoring.DISABLE

    with _monitoring():
        sys.monitoring.register_callback(_TOOL, _LINE, note)
        sys.monitoring.set_events(_TOOL, _LINE)
        sys.monitoring.restart_events()
        yield places


@contextmanager
def raising_at(place: Place, *, always: bool = False) -> Iterator[list[Place]]:
    """Let this line raise, the first time it is reached or always; the list then has it."""
    raised: list[Place] = []

    def fail(code: CodeType, line: int) -> object:
        if line == place.line and (always or not raised):
            raised.append(place)
            raise Bug(str(place))
        return None

    with _monitoring():
        sys.monitoring.register_callback(_TOOL, _LINE, fail)
        sys.monitoring.set_local_events(_TOOL, place.code, _LINE)
        try:
            yield raised
        finally:
            sys.monitoring.set_local_events(_TOOL, place.code, 0)
