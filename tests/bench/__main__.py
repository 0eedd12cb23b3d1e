"""How fast, side by side: python -m tests.bench

All figures are of one run on one machine: compare them with each other, not with other runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import resources, ways
from tests.bench.rounds import LIST, Scenario, Table, large_scenarios, scenarios, side_by_side
from tests.bench.table import render_lists, render_peaks, render_resources, render_row
from tests.bench.targets import Results, far_off, targets
from tests.bench.ways import Running

_TOOLS = (20, 200, 2000, 10_000)
_SESSIONS = 5000
REWRITTEN = "mcp-tool-filter, rewritten"


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)  # nginx gives up its rights, and then wants to look in
        results = _measure_short(Path(home)) if args.short else _measure(Path(home), args)
    reached = list(targets(results))
    print("\n" + "\n".join(f"- {target}" for target in reached))
    print(f"\nThis took {time.monotonic() - began:.0f} s.")
    if args.json:
        said = {"machine": _machine(), "targets": [asdict(one) for one in reached]}
        written = json.dumps(_rounded(asdict(results) | said), indent=1)
        Path(args.json).write_text(written + "\n")
    if not args.short:
        return 0
    problems = far_off(results)
    print("\n".join(problems) or "No ratio is far off.")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="for CI: fails on ratios far off")
    parser.add_argument("--rounds", type=int, default=5, help="the median of them counts")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each way in each round")
    parser.add_argument("--without", default="", help="ways to leave out, such as slow ones")
    parts = "calls,large,audit,lists,resources"
    parser.add_argument("--only", default=parts, help="some of the parts")
    parser.add_argument("--json", metavar="FILE", help="where to write it, for bench.published")
    return parser


def _measure_short(home: Path) -> Results:
    results = Results()
    with ways.upstreams(20) as ports:
        _fill_among(results.calls, ways.SHORT, ports[20], home, scenarios(short=True), 5, 0.25)
    return results


def _measure(home: Path, args: argparse.Namespace) -> Results:
    results, parts = Results(), args.only.split(",")
    results.absent = [why for name in ways.ALL if (why := ways.why_absent(name))]
    print("\n".join(results.absent))
    with ways.upstreams(*_TOOLS) as ports:
        port, often = ports[20], (args.rounds, args.seconds)
        if "calls" in parts:
            _fill_among(results.calls, _present(args), port, home, scenarios(), *often)
        if "large" in parts:
            _fill_among(results.large, ways.SHORT, port, home, large_scenarios(), *often)
            results.peaks = resources.peaks(ways.PROGRAMS, port, home)
            print(render_peaks(results.peaks))
        if "audit" in parts:
            both = (ways.LAUNCHER, ways.AUDITED)
            _fill_among(results.audit, both, port, home, scenarios(short=True), *often)
        if "lists" in parts:
            for number, port in ports.items():
                results.lists[number] = _lists(number, port, home, args)
            print(render_lists(results.lists))
        if "resources" in parts:
            _measure_resources(results, ports, home, args)
            print(render_resources(results))
    return results


def _present(args: argparse.Namespace) -> list[str]:
    left_out = args.without.split(",")
    return [name for name in ways.ALL if name not in left_out and not ways.why_absent(name)]


def _fill_among(
    table: Table, names: Sequence[str], port: int, home: Path, asked: Iterable[Scenario],
    rounds: int, seconds: float,
) -> None:  # fmt: skip
    with ways.all_running([ways.way(name, port, home) for name in names]) as running:
        _fill(table, running, asked, rounds, seconds)


def _fill(
    table: Table, chosen: Sequence[Running], asked: Iterable[Scenario], rounds: int, seconds: float
) -> None:
    for title, row in side_by_side(chosen, asked, rounds, seconds):
        table[title] = row
        print(render_row(title, row), flush=True)


def _lists(number: int, port: int, home: Path, args: argparse.Namespace) -> Table:
    """The list from the snapshot, the list rewritten, and calls among so many tools."""
    rewriting = ways.way(ways.LAUNCHER, port, home, "--new-tools", "judge")
    chosen = [ways.way(name, port, home) for name in ways.SHORT]
    table: Table = {}
    with ways.all_running(chosen) as all_of_them, ways.running(rewriting) as it:
        everyone = [*all_of_them, Running(REWRITTEN, it.port, it.pids)]
        asked = [Scenario(f"list, {number} tools", LIST), *scenarios(short=True)[:1]]
        _fill(table, everyone, asked, args.rounds, args.seconds)
    return table


def _measure_resources(
    results: Results, ports: dict[int, int], home: Path, args: argparse.Namespace
) -> None:
    fewest = ports[min(ports)]
    present = [name for name in _present(args) if name != ways.DIRECT]
    results.start_up = resources.start_up(present, fewest, home, args.rounds)
    for number, port in ports.items():
        results.resident[number] = resources.resident(ways.PROGRAMS, port, home)
    streaming = (ways.SCRIPT, ways.LAUNCHER)  # mitmdump alone holds a stream back until it ends
    results.idle_stream = resources.idle_streams(streaming, fewest, home)
    results.sessions = resources.among_sessions(fewest, home, _SESSIONS, args.rounds, args.seconds)


def _rounded(said: Any) -> Any:
    """Return what was measured with four digits: more say nothing."""
    if isinstance(said, dict):
        return {key: _rounded(value) for key, value in said.items()}
    if isinstance(said, list | tuple):
        return [_rounded(value) for value in said]
    return float(f"{said:.4g}") if isinstance(said, float) else said


def _machine() -> dict[str, str | int | None]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main())
