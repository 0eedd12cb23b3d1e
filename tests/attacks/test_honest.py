"""Honest messages pass byte for byte, both ways."""

from __future__ import annotations

import pytest

from tests.attacks.honest import EXCHANGES, Exchange, plain
from tests.attacks.stage import Link, Stage
from tests.raw_upstream import RawRequest


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_an_honest_exchange_passes(stage: Stage, exchange: Exchange) -> None:
    said = b"".join(exchange.said)

    async def respond(_request: RawRequest, link: Link) -> None:
        for piece in exchange.said:
            await link.say(piece)
        if exchange.ends:
            link.writer.write_eof()

    async def scene() -> None:
        stage.upstream.respond = respond
        heard = await stage.all_that_comes(
            exchange.asked, patient=not exchange.asked.startswith(b"HEAD")
        )
        (asked,) = stage.upstream.requests
        assert plain(exchange.asked) == (plain(asked.head)[0], asked.body)
        assert plain(said) == plain(heard)

    stage.play(scene())
