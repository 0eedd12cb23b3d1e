"""Nothing by which the denied tool is known reaches a client, whatever the upstream says."""

from __future__ import annotations

import pytest

from tests.attacks.answers import ATTACKS, Attack
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, MARK, Link, Stage
from tests.raw_upstream import RawRequest


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_definition_does_not_get_through(stage: Stage, attack: Attack) -> None:
    heard = stage.play(_scene(stage, attack))
    assert not shows(heard, DENIED, MARK), heard


async def _scene(stage: Stage, attack: Attack) -> bytes:
    async def respond(_request: RawRequest, link: Link) -> None:
        for piece in attack.said:
            await link.say(piece)
        if attack.ends:
            link.writer.write_eof()

    stage.upstream.respond = respond
    return await stage.all_that_comes(attack.asked)
