"""Real clients of both eras and real servers do the same through ``/mcp`` as without it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.pairs import SERVERS, VARIANTS, Client, Pair, Server, steps
from tests.end_to_end.peer import Step, Upstream, need, play, upstream
from tests.end_to_end.test_peers_filtered import DENIED, assert_filtered
from tests.rooms.serve.test_serve import serving

CLIENTS = (
    Client("mcp1"),
    Client("mcp2", mode="auto"),
    Client("ts1"),
    Client("ts2", mode="legacy"),
    Client("ts2", mode="auto"),
)
VISITORS = (Client("mcp1"), Client("ts2", mode="auto"))


@contextmanager
def merging(origin: str, path: str) -> Iterator[str]:
    """Serve one server, with an empty prefix, as the merged one; yields the URL."""
    with tempfile.TemporaryDirectory() as folder:
        text = f'[servers.it]\nurl = "{origin}{path}"\nprefix = ""\n'
        with serving(Path(folder), text + 'deny = ["^delete_.*$", "^drop_"]\n') as it:
            it.says("it: http")
            yield f"http://127.0.0.1:{it.port}/mcp"


@pytest.fixture(scope="module")
def merged(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Upstream, str]]:
    server: Server = request.param
    with ExitStack() as stack:
        there = stack.enter_context(upstream(server.name, *server.flags))
        url = stack.enter_context(merging(there.origin, there.path))
        yield server, there, url


ROWS = [
    pytest.param(server, client, id=f"{server}, {client}")
    for server in (*SERVERS, *VARIANTS)
    for client in (CLIENTS if server in (Server("mcp1"), Server("ts2")) else VISITORS)
]


@pytest.mark.rest
@pytest.mark.parametrize(("merged", "client"), ROWS, indirect=["merged"], scope="module")
def test_a_client_and_a_server_work_through_mcp(
    merged: tuple[Server, Upstream, str], client: Client
) -> None:
    server, there, url = merged
    need(client.name)
    pair = Pair(server, client)
    before = len(there.calls())
    denied: list[Step] = [{"call": name, "arguments": {"path": "a"}} for name in DENIED]
    document = play(client.name, url, [*steps(pair).values(), *denied], *client.flags)
    assert_filtered(pair, document, there.calls()[before:])
