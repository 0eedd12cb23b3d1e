"""No request that some server could take for a call of the denied tool reaches the upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.attacks.requests import ATTACKS, Attack
from tests.attacks.stage import DENIED, Stage, open_stage, shows


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        stage, stack = open_stage(runner, tmp_path_factory.mktemp("home"))
        yield stage
        runner.run(stack.aclose())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_call_does_not_get_through(stage: Stage, attack: Attack) -> None:
    async def scene() -> None:
        await stage.all_that_comes(attack.raw, answers=attack.answers)

    stage.play(scene())
    assert not shows(stage.upstream.raw, DENIED), stage.upstream.raw
