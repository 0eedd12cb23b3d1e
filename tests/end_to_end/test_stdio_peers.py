"""Real clients and servers with the filter between them, where one side or both speak stdio.

There are three shapes: stdio to stdio, stdio in front of a URL, and HTTP in front of a command.
In each one a pair does what it does without a filter, but for the denied tools.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from .filtering import started
from .pairs import CLIENTS, SERVERS, VARIANTS, Client, Pair, Server
from .peer import calls_in, command_of, need, play, upstream
from .test_peers_filtered import assert_filtered, scenario

DENY = "^delete_.*$,^drop_"
FILTER = [sys.executable, "-m", "mcp_tool_filter", "--deny", DENY]
COMMANDS = [Server(name, ("--transport", "stdio")) for name in ("mcp1", "mcp2", "ts1", "ts2")]
URLS = [
    one
    for one in (*SERVERS, *VARIANTS)
    if one.name == "mcp1" or one.variant in (None, "--resumable")
]
WEB_CLIENTS = [one for one in CLIENTS if not re.search("modern|sse-legacy", str(one))]
STDIO_CLIENTS = [
    Client(one.name, "stdio", one.mode) for one in WEB_CLIENTS if one.transport != "sse"
]


def pairs(servers: list[Server], clients: list[Client]) -> list[Pair]:
    return [Pair(server, client) for server, client in product(servers, clients)]


@pytest.mark.parametrize("pair", pairs(COMMANDS, STDIO_CLIENTS), ids=str)
def test_a_pair_works_over_stdio(pair: Pair, tmp_path: Path) -> None:
    need(pair.client.name)
    journal = tmp_path / "journal"
    words = [*FILTER, "--", *command_of(pair.server.name, journal)]
    document = play(pair.client.name, json.dumps(words), scenario(pair), *pair.client.flags)
    assert_filtered(pair, document, calls_in(journal))


@pytest.mark.parametrize("pair", pairs(URLS, STDIO_CLIENTS), ids=str)
def test_a_pair_works_through_the_pipe(pair: Pair) -> None:
    need(pair.client.name)
    with upstream(pair.server.name, *pair.server.flags) as server:
        words = [*FILTER, "--stdio", "--upstream", server.url]
        document = play(pair.client.name, json.dumps(words), scenario(pair), *pair.client.flags)
        assert_filtered(pair, document, server.calls())


@pytest.mark.parametrize("pair", pairs(COMMANDS, WEB_CLIENTS), ids=str)
def test_a_pair_works_with_a_command_behind_http(pair: Pair, tmp_path: Path) -> None:
    need(pair.client.name)
    journal = tmp_path / "journal"
    with serving(command_of(pair.server.name, journal)) as origin:
        url = origin + ("/sse" if pair.client.transport == "sse" else "/mcp")
        document = play(pair.client.name, url, scenario(pair), *pair.client.flags)
        assert_filtered(pair, document, calls_in(journal))


@contextmanager
def serving(command: list[str], deny: str = DENY) -> Iterator[str]:
    """Serve a command over HTTP; yield the origin."""
    with started(*FILTER[:-1], deny, "--port", "0", "--", *command) as it:
        yield it.url("")
