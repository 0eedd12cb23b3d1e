"""Honest messages pass byte for byte, both ways."""

from __future__ import annotations

from collections.abc import Sequence

from tests.attacks.answers import Exchange
from tests.attacks.honest import EXCHANGES, plain
from tests.attacks.stage import Stage, in_groups


@in_groups(EXCHANGES)
def test_an_honest_exchange_passes(stage: Stage, group: Sequence[Exchange]) -> None:
    for one in group:
        is_patient = not one.asked.startswith(b"HEAD")
        heard = stage.hears(one.asked, *one.said, ends=one.ends, patient=is_patient)
        (asked,) = stage.upstream.requests
        assert plain(one.asked) == (plain(asked.head)[0], asked.body), one.name
        assert plain(b"".join(one.said)) == plain(heard), one.name
