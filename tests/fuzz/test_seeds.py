"""The fuzzer's target over all that it begins with: the oracles themselves are tested."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.fuzz.seeds import seeds, tokens
from tests.fuzz.target import DOORS, run
from tests.fuzz.weakened import ROWS

pytestmark = pytest.mark.rest

_SEEDS = seeds()


@pytest.mark.parametrize("door", range(len(DOORS)))
def test_no_seed_breaks_a_promise(door: int) -> None:
    seeds_of_door = [seed for seed in _SEEDS if seed[0] % len(DOORS) == door]
    assert seeds_of_door
    for seed in seeds_of_door:
        run(seed)


@pytest.mark.parametrize("places", ROWS, ids=" ".join)
def test_a_weakened_filter_is_detected(places: tuple[str, ...]) -> None:
    assert _noticed(*places)


def test_the_whole_filter_is_not_detected() -> None:
    assert not _noticed()


def _noticed(*weakened: str) -> str:
    command = [sys.executable, "-m", "tests.fuzz.weakened", *weakened]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_dictionary_is_valid_for_libfuzzer() -> None:
    assert all(re.fullmatch(r'"(?:\\x[0-9a-f]{2})+"', line) for line in tokens().splitlines())
