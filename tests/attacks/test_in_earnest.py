"""Some of each kind once more, as users start it: mitmdump with the script, and our launcher."""

from __future__ import annotations

from pathlib import Path

from tests.attacks import answers, honest, hostile_requests
from tests.attacks.answers import Exchange
from tests.attacks.honest import plain
from tests.attacks.hosts import hosted, in_each_host
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, MARK, PROBE, Upstream, listening, saying, speak
from tests.mcp_upstream import RESULT
from tests.raw_client import raw_client


def is_quick(one: Exchange) -> bool:
    """Many are large, or wait for what never comes."""
    return len(one.asked) + sum(map(len, one.said)) < 3000


REQUESTS = [one for one in hostile_requests.ATTACKS if len(one.raw) < 3000][::12]
ANSWERS = list(filter(is_quick, answers.ATTACKS))[::25]
HONEST = [one for one in honest.EXCHANGES if is_quick(one) and one.asked[:4] != b"HEAD"][::9]


async def _answers(port: int) -> bool:
    try:
        async with raw_client(port) as client:
            return (await client.ask(PROBE)).body == RESULT
    except ConnectionError:
        return False


@in_each_host
async def test_a_sample_of_all_exchanges_is_judged_alike_by_the_real_process(
    host: str, tmp_path: Path
) -> None:
    option = "keep_running" if host == "launcher" else "fail_fast=false"
    async with (
        listening() as upstream,
        hosted(host, upstream.url, tmp_path, option, deny=f"^{DENIED}$") as it,
    ):
        port = it.port
        assert await _answers(port)
        for request in REQUESTS:
            upstream.forget()
            await speak(port, request.raw, answers=request.answers)
            assert not shows(upstream.raw, DENIED), request.name
        for answer in ANSWERS:
            heard = await _heard(upstream, port, answer)
            assert not shows(heard, DENIED, MARK), answer.name
        for exchange in HONEST:
            heard = await _heard(upstream, port, exchange, patient=True)
            assert plain(heard) == plain(b"".join(exchange.said)), exchange.name
        assert await _answers(port)


async def _heard(upstream: Upstream, port: int, one: Exchange, *, patient: bool = False) -> bytes:
    upstream.forget()
    upstream.respond = saying(*one.said, ends=one.ends)
    return await speak(port, one.asked, patient=patient, is_busy=upstream.is_busy_saying)
