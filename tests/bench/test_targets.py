"""What the benchmark says of its figures; no test looks at a time."""

from __future__ import annotations

from tests.bench.rounds import Measured, added, ratio
from tests.bench.table import render_row
from tests.bench.targets import Results, far_off, targets
from tests.bench.ways import DIRECT, LAUNCHER, SCRIPT, STOCK

ONE = "call, 1 KB, 1 client"


def measured(*rounds: float, p50: float = 1.0) -> Measured:
    return Measured(sorted(rounds)[len(rounds) // 2], p50, 2 * p50, 100.0, rounds)


def test_a_ratio_is_the_median_of_the_ratios_of_all_rounds() -> None:
    """Whatever slows the machine down in one round slows both down."""
    row: dict[str, Measured | str] = {"a": measured(200, 20, 300), "b": measured(100, 10, 100)}
    assert ratio(row, "a", "b") == 2.0


def test_a_failed_measurement_has_no_ratio() -> None:
    row: dict[str, Measured | str] = {"a": measured(1), "b": "refused"}
    assert ratio(row, "a", "b") is None
    assert added(row, "a") is None
    assert "| b | failed: refused |" in render_row("call", row)


def test_a_target_says_whether_it_is_reached() -> None:
    calls: dict[str, Measured | str] = {
        DIRECT: measured(1000, p50=0.1),
        STOCK: measured(100, p50=1.1),
        LAUNCHER: measured(150, p50=0.5),
    }
    said = [str(target) for target in targets(Results(calls={ONE: calls}))]
    assert f"launcher / mitmdump, {ONE}: 1.50 x (at least 4): NOT reached" in said
    assert "added latency, launcher / mitmdump: 0.40 x (at most 0.5): reached" in said


def test_ci_fails_on_ratios_far_off_and_on_missing_ones() -> None:
    fast: dict[str, Measured | str] = {
        DIRECT: measured(1000),
        STOCK: measured(100),
        SCRIPT: measured(60),
        LAUNCHER: measured(150),
    }
    titles = (ONE, "call, 1 KB, 16 clients", "list, 20 tools, 1 client")
    assert far_off(Results(calls=dict.fromkeys(titles, fast))) == []
    slow = {**fast, SCRIPT: measured(40)}
    assert len(far_off(Results(calls=dict.fromkeys(titles, slow)))) == 2
    assert len(far_off(Results())) == 6


def test_a_large_result_is_compared_by_time_by_what_it_computes_and_by_memory() -> None:
    title = "5 MB of text, 1 client"
    row: dict[str, Measured | str] = {STOCK: measured(100), LAUNCHER: measured(80)}
    peaks = {title: {STOCK: 2.0, SCRIPT: 2.5, LAUNCHER: 3.5}}
    said = [str(target) for target in targets(Results(large={title: row}, peaks=peaks))]
    assert said == [
        f"{title}, {LAUNCHER} / mitmdump: 1.25 x (at most 1): NOT reached",
        f"{title}, {LAUNCHER} / mitmdump, processor: 1.00 x (at most 1): reached",
        f"{title}, memory, {SCRIPT}: 2.50 x its size (at most 3): reached",
        f"{title}, memory, {LAUNCHER}: 3.50 x its size (at most 3): NOT reached",
    ]
