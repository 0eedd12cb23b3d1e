"""Honest messages pass byte for byte, both ways."""

from __future__ import annotations

from collections.abc import Sequence

from tests.attacks.honest import EXCHANGES, Exchange, plain
from tests.attacks.stage import Link, Stage, in_groups
from tests.raw_upstream import RawRequest


@in_groups(EXCHANGES)
def test_an_honest_exchange_passes(stage: Stage, group: Sequence[Exchange]) -> None:
    async def scene(exchange: Exchange) -> bytes:
        async def respond(_request: RawRequest, link: Link) -> None:
            for piece in exchange.said:
                await link.say(piece)
            if exchange.ends:
                link.writer.write_eof()

        stage.upstream.respond = respond
        return await stage.all_that_comes(
            exchange.asked, patient=not exchange.asked.startswith(b"HEAD")
        )

    for exchange in group:
        heard = stage.play(scene(exchange))
        (asked,) = stage.upstream.requests
        assert plain(exchange.asked) == (plain(asked.head)[0], asked.body), exchange.name
        assert plain(b"".join(exchange.said)) == plain(heard), exchange.name
