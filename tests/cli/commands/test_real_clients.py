"""Real clients and upstreams with our launcher between them, each at least once.

All their pairs, and the variants of the upstreams, meet in mitmdump: the addon is the same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.launched import surroundings
from tests.end_to_end.expected import assert_all_worked
from tests.end_to_end.filtering import Filter, introduced
from tests.end_to_end.pairs import PAIRS, Pair, steps
from tests.end_to_end.peer import need, play, upstream
from tests.end_to_end.test_peers_filtered import DENIED, DENIED_CALLS, EXPOSED

pytestmark = pytest.mark.rest


def some(pairs: list[Pair]) -> list[Pair]:
    """Those with a client or an upstream that none before them has."""
    met: set[str] = set()
    chosen = []
    for pair in pairs:
        both = {f"client {pair.client}", f"server {pair.server}"}
        if not pair.server.variant and not both <= met:
            chosen.append(pair)
        met |= both
    return chosen


@contextmanager
def launcher(url: str, home: Path, *words: str) -> Iterator[Filter]:
    command = [sys.executable, "-m", "mcp_tool_filter", "-u", url, "-p", "0", *words]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings(home),
    )
    try:
        yield introduced(process, 1)
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize("pair", some(PAIRS), ids=str)
def test_a_pair_works_and_the_denied_tools_are_gone(pair: Pair, tmp_path: Path) -> None:
    need(pair.client.name)
    with (
        upstream(pair.server.name, *pair.server.flags) as server,
        launcher(server.url, tmp_path, "-d", "^delete_.*$,^drop_", "--allow", ".") as filter,
    ):
        url = filter.url(server.path)
        document = play(
            pair.client.name, url, [*steps(pair).values(), *DENIED_CALLS], *pair.client.flags
        )
        called = server.calls()

    assert_all_worked(pair, document, tools=EXPOSED)
    refused = [outcome["error"] for outcome in document.outcomes[-len(DENIED) :]]
    assert [error["code"] for error in refused] == [-32601, -32601]
    assert not {*DENIED} & {*called}
