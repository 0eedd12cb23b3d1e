"""No request that some server could take for a call of the denied tool reaches the upstream."""

from __future__ import annotations

import pytest

from tests.attacks.hostile_requests import ATTACKS, Attack
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, Stage


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_call_does_not_get_through(stage: Stage, attack: Attack) -> None:
    async def scene() -> None:
        await stage.all_that_comes(attack.raw, answers=attack.answers)

    stage.play(scene())
    assert not shows(stage.upstream.raw, DENIED), stage.upstream.raw
