"""A few seconds of the soak over stdio."""

from __future__ import annotations

import pytest

from tests.bench.soak.lines import soak

pytestmark = pytest.mark.rest


def test_no_call_is_lost_and_no_process_is_left() -> None:
    tally = soak(seconds=4, at_once=3, seed=14)
    assert tally.problems == []
    assert tally.endings.total() > 3
