"""What do rules cost that do not match? python -m tests.bench.rules [--instructions]

The same proxy without rules, and with 100 and 1,000 of each kind, side by side in one run. Rates
vary with whatever else the machine does; processor time per call varies less, and instructions
(counted by callgrind) hardly at all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.bench.instructions import count_instructions
from tests.bench.rounds import Measured, Scenario, call, side_by_side
from tests.bench.ways import LAUNCHER, Way, all_running, upstreams, way

_ARGUMENT = "[tool_equals: answer, {{param_%s: {{field: arguments.as, %s}}}}]"
_RESULT = "[tool_equals: answer, {{result_matches: {{field: 'content[*].text', pattern: s{}}}}}]"
_KINDS = {
    "other methods": "[method_equals: other/m{}]",
    "other tools": "[tool_equals: other_{}]",
    "other values": _ARGUMENT % ("equals", "value: v{}"),
    "other patterns": _ARGUMENT % ("matches", "pattern: ^v{}"),
    "other results": _RESULT,
}
_NUMBERS = (100, 1000)
_NONE = "no rules"
_CALL = call(1024, "json")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rules", description=__doc__)
    parser.add_argument("--instructions", action="store_true", help="count with callgrind instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as home, upstreams(20) as ports:
        groups = [_ways(kind, ports[20], Path(home)) for kind in _KINDS]
        if args.instructions:
            _show_instructions(groups)
        else:
            _show_rates(groups, args.rounds, args.seconds)
    return 0


def _ways(kind: str, upstream: int, home: Path) -> list[Way]:
    """Return the proxy without rules, and with so many of a kind."""
    found = [replace(way(LAUNCHER, upstream, home), name=_NONE)]
    for number in _NUMBERS:
        path = home / f"{kind}-{number}.yaml"
        path.write_text(_rules(kind, number))
        one = way(LAUNCHER, upstream, home, "--rules", str(path))
        found.append(replace(one, name=f"{number:,} {kind}"))
    return found


def _rules(kind: str, number: int) -> str:
    lines = [
        f"    - {{id: r{n}, conditions: {_KINDS[kind].format(n)}, actions: [block: no]}}"
        for n in range(number)
    ]
    return "interceptor:\n  rules:\n" + "\n".join(lines) + "\n"


def _show_rates(groups: list[list[Way]], rounds: int, seconds: float) -> None:
    print("| rules | calls/s | of no rules | p50 ms | processor us | of no rules |")
    print("| --- | --: | --: | --: | --: | --: |")
    for ways in groups:
        with all_running(ways) as running:
            scenario = Scenario("call, 1 KB", _CALL, 4)
            ((_, row),) = side_by_side(running, [scenario], rounds, seconds)
        base = row[_NONE]
        assert isinstance(base, Measured), base
        for name, one in row.items():
            assert isinstance(one, Measured), one
            rate, work = one.rate / base.rate, one.processor / base.processor
            print(
                f"| {name} | {one.rate:,.0f} | {rate:.0%} | {one.p50:.2f} "
                f"| {one.processor:.0f} | {work:.0%} |",
                flush=True,
            )


def _show_instructions(groups: list[list[Way]]) -> None:
    print("| rules | thousand instructions | of no rules |\n| --- | --: | --: |")
    base = count_instructions(groups[0][0], _CALL)
    print(f"| {_NONE} | {base / 1000:,.0f} | 100% |", flush=True)
    for _, *ways in groups:
        for one in ways:
            found = count_instructions(one, _CALL)
            print(f"| {one.name} | {found / 1000:,.0f} | {found / base:.0%} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
