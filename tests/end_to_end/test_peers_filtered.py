"""Real clients and upstreams do the same with the filter between them, except for two tools."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from .expected import assert_all_worked
from .filtering import HOSTS, Filter
from .pairs import PAIRS, Pair, Server, steps
from .peer import SCRIPTS, Document, Step, Upstream, conformance, need, play, upstream

DENIED = ("delete_file", "drop_database")
TOOLS = [tool["name"] for tool in json.loads((SCRIPTS / "fixtures.json").read_text())["tools"]]
EXPOSED = [name for name in TOOLS if name not in DENIED]


def scenario(pair: Pair) -> list[Step]:
    denied: list[Step] = [{"call": name, "arguments": {"path": "a"}} for name in DENIED]
    return [*steps(pair).values(), *denied]


def assert_filtered(pair: Pair, document: Document, calls: list[str]) -> None:
    assert_all_worked(pair, document, tools=EXPOSED)
    refused = [outcome["error"] for outcome in document.outcomes[-len(DENIED) :]]
    assert [error["code"] for error in refused] == [-32601] * len(DENIED)
    assert [error["message"].rpartition(": ")[2] for error in refused] == list(DENIED)
    assert not {*DENIED, "no_such_tool"} & {*calls}


@dataclass
class Running:
    upstream: Upstream
    filter: Filter


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Each upstream and its filter once for all clients."""
    server: Server
    server, host = request.param
    with (
        upstream(server.name, *server.flags) as started,
        HOSTS[host](started.origin, deny="^delete_.*$,^drop_", allow=".") as filter,
    ):
        yield Running(started, filter)


@pytest.mark.parametrize(
    ("running", "pair"),
    [
        pytest.param((pair.server, host), pair, id=f"{host}, {pair}")
        for host in HOSTS
        for pair in PAIRS
    ],
    indirect=["running"],
    scope="module",
)
def test_a_pair_works_and_the_denied_tools_are_gone(running: Running, pair: Pair) -> None:
    need(pair.client.name)
    already_called = len(running.upstream.calls())
    url = running.filter.url(running.upstream.path)
    document = play(pair.client.name, url, scenario(pair), *pair.client.flags)
    assert_filtered(pair, document, running.upstream.calls()[already_called:])


@pytest.mark.parametrize("host", HOSTS)
def test_the_conformance_suite_gives_the_same_result_as_without_a_filter(host: str) -> None:
    with upstream("conformance") as server, HOSTS[host](server.origin, deny="^no_such$") as filter:
        direct = conformance(server.url)
        filtered = conformance(filter.url(server.path))

    assert filtered == direct
    assert sum(len(checks) for checks in filtered.values()) == 47
