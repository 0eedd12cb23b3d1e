"""Real clients and upstreams do the same with the filter between them, except for two tools."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from .expected import TOOLS, assert_all_worked
from .filtering import HOSTS
from .pairs import PAIRS, Pair, steps
from .peer import Document, Step, Upstream, conformance, need, play, upstream

DENIED = ("delete_file", "drop_database")
EXPOSED = [name for name in TOOLS if name not in DENIED]
DIRECTLY = "directly"


def scenario(pair: Pair) -> list[Step]:
    denied: list[Step] = [{"call": name, "arguments": {"path": "a"}} for name in DENIED]
    return [*steps(pair).values(), *denied]


def assert_filtered(pair: Pair, document: Document, calls: list[str]) -> None:
    assert_all_worked(pair, document, tools=EXPOSED)
    refused = [outcome["error"] for outcome in document.outcomes[-len(DENIED) :]]
    assert [error["code"] for error in refused] == [-32601] * len(DENIED)
    assert [error["message"].rpartition(": ")[2] for error in refused] == list(DENIED)
    assert calls[:3] == ["read_file", "größe_messen_測る", "query_database"]
    assert not {*DENIED, "no_such_tool"} & {*calls}


@dataclass
class Running:
    upstream: Upstream
    origin: str
    is_filtered: bool


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Each upstream once for all clients, behind a filter or not."""
    server, host = request.param
    with ExitStack() as stack:
        there = stack.enter_context(upstream(server.name, *server.flags))
        origin = there.origin
        if host != DIRECTLY:
            filters = HOSTS[host](origin, deny="^delete_.*$,^drop_", allow=".")
            origin = stack.enter_context(filters).url("")
        yield Running(there, origin, host != DIRECTLY)


ROWS = [
    pytest.param((pair.server, host), pair, id=f"{host}, {pair}")
    for host in (DIRECTLY, *HOSTS)
    for pair in PAIRS
]


@pytest.mark.parametrize(("running", "pair"), ROWS, indirect=["running"], scope="module")
def test_a_pair_works_and_behind_a_filter_the_denied_tools_are_gone(
    running: Running, pair: Pair
) -> None:
    need(pair.client.name)
    already_called = len(running.upstream.calls())
    url = running.origin + running.upstream.path
    document = play(pair.client.name, url, scenario(pair), *pair.client.flags)
    if running.is_filtered:
        assert_filtered(pair, document, running.upstream.calls()[already_called:])
    else:
        assert_all_worked(pair, document, tools=TOOLS)


@pytest.mark.parametrize("host", HOSTS)
def test_the_conformance_suite_gives_the_same_result_as_without_a_filter(host: str) -> None:
    with upstream("conformance") as server, HOSTS[host](server.origin, deny="^no_such$") as filter:
        direct = conformance(server.url)
        filtered = conformance(filter.url(server.path))

    assert filtered == direct
    assert (len(direct), sum(map(len, direct.values()))) == (32, 47)
    assert {status for checks in direct.values() for status in checks.values()} == {"SUCCESS"}
