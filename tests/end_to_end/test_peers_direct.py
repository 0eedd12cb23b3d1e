"""What real clients and upstreams do without the filter: what we compare with."""

import json
from collections.abc import Iterator

import pytest

from .expected import assert_all_worked
from .pairs import PAIRS, Pair, Server, steps
from .peer import SCRIPTS, Upstream, conformance, need, play, upstream

TOOLS = [tool["name"] for tool in json.loads((SCRIPTS / "fixtures.json").read_text())["tools"]]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """Each upstream once for all its clients."""
    server: Server = request.param
    with upstream(server.name, *server.flags) as started:
        yield started


@pytest.mark.parametrize(
    ("running", "pair"),
    [pytest.param(pair.server, pair, id=str(pair)) for pair in PAIRS],
    indirect=["running"],
    scope="module",
)
def test_a_pair_works(running: Upstream, pair: Pair) -> None:
    need(pair.client.name)
    already_called = len(running.calls())
    scenario = steps(pair)

    document = play(pair.client.name, running.url, [*scenario.values()], *pair.client.flags)

    assert_all_worked(pair, document, tools=TOOLS)
    assert running.calls()[already_called:][:3] == [
        "read_file",
        "größe_messen_測る",
        "query_database",
    ]


def test_the_conformance_suite_finds_nothing_wrong() -> None:
    with upstream("conformance") as server:
        results = conformance(server.url)

    assert len(results) == 32
    assert sum(len(checks) for checks in results.values()) == 47
    assert {status for checks in results.values() for status in checks.values()} == {"SUCCESS"}
