"""No request that some server could take for a call of the denied tool reaches the upstream."""

from __future__ import annotations

from collections.abc import Sequence

from tests.attacks.hostile_requests import ATTACKS, Attack
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, Stage, in_groups
from tests.mcp_upstream import RESULT
from tests.raw_upstream import answer


@in_groups(ATTACKS)
def test_a_call_does_not_get_through(stage: Stage, group: Sequence[Attack]) -> None:
    through = {}
    for attack in group:
        stage.hears(attack.raw, answer(RESULT), answers=attack.answers)
        if shows(stage.upstream.raw, DENIED):
            through[attack.name] = stage.upstream.raw
    assert through == {}
