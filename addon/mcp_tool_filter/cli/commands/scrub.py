"""``mcp-tool-filter scrub``: remove the secrets from a recording."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of mitmproxy's own dependencies
    from mitmproxy.http import HTTPFlow

    from mcp_tool_filter.adapters.recordings.flow_dump import (
        damage_in,
        read_all_flows,
        write_flows_to,
    )
    from mcp_tool_filter.adapters.recordings.scrub import Scrubber

from mcp_tool_filter.adapters.whole_file import whole_file
from mcp_tool_filter.cli.flags import WORDS, Given, UsageError
from mcp_tool_filter.errors import StartError, printable

_MOST_SHOWN = 20


class CannotWrite(StartError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"Cannot write {path}", why=why)


def run(typed: Given) -> int:
    """Scrub a file into another; return the exit status."""
    paths = [Path(word) for word in typed.get(WORDS, [])]
    if len(paths) < 2:
        raise UsageError("Name two files", why="mcp-tool-filter scrub SOURCE TARGET")
    source, target = paths
    scrubber = Scrubber(
        fields=frozenset(typed.get("field", ())),
        headers=frozenset(map(str.encode, typed.get("header", ()))),
    )
    everything = read_all_flows(source)
    flows = [flow for flow in everything if isinstance(flow, HTTPFlow)]
    try:
        with damage_in(source):
            found = scrubber.scrub(flows)
            _write(target.resolve(), flows)
    except OSError as error:
        raise CannotWrite(target, error.strerror or str(error)) from error
    counts = f"{_count(len(flows), 'flow')}, {_count(found, 'secret')}"
    print(f"{counts} masked: {target}", file=sys.stderr)
    if others := len(everything) - len(flows):
        are = "that is" if others == 1 else "that are"
        print(f"Left out: {_count(others, 'flow')} {are} not HTTP", file=sys.stderr)
    _warn_of(scrubber.unread)
    return 0


def _write(target: Path, flows: Sequence[HTTPFlow]) -> None:
    """Write the file atomically; only its owner may read it."""
    if target.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    with whole_file(target) as new:  # source and target may be the same file
        write_flows_to(new, flows)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _warn_of(unread: Sequence[str]) -> None:
    if not unread:
        return
    print("Warning: these parts could not be read and may still hold secrets:", file=sys.stderr)
    for part in unread[:_MOST_SHOWN]:
        print(f"  {printable(part)}", file=sys.stderr)
    if len(unread) > _MOST_SHOWN:
        print(f"  and {len(unread) - _MOST_SHOWN} more", file=sys.stderr)
