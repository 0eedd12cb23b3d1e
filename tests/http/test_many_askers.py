"""Ten thousand askers of a filter that remembers a thousand take little more memory than two
thousand.

That takes a minute, so a tenth of them ask a filter that remembers a tenth of the lists. With
FILTER_TESTS_ASKERS=10000 in the environment, as in .ci/full, all of them do.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from mcp_tool_filter.http.exchange import Passed
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.protocol.limits import Limits
from tests.http.listening import BOTH, INITIALIZE, JSON, answer, listener, send
from tests.make import answering, asking, definition, head

REVISION = "2025-11-25"
MANY = int(os.environ.get("FILTER_TESTS_ASKERS", "1000"))
FEW = MANY // 5
REMEMBERED = MANY // 10
LIST_SIZE = 4_000
MOST_EACH = 1_000  # bytes: what is known of a session, but not its list
HELLO = answering(f'{{"protocolVersion":"{REVISION}","capabilities":{{}}}}', id="0")


def list_of(number: int) -> bytes:
    """Write the list of one user."""
    long = ',"description":"' + "x" * LIST_SIZE + '"'
    return answering('{"tools":[' + definition(f"of_{number}", long).decode() + "]}")


def list_with_token(door: Listener, number: int) -> None:
    """Ask for the list without a session, with a token of one's own; get tools of one's own."""
    headers = {**BOTH, "authorization": f"Bearer {number}", "mcp_protocol_version": REVISION}
    outcome = send(door, head(**headers), asking("tools/list"))
    assert isinstance(outcome, Passed)
    answer(door, outcome.exchange, 200, JSON, "", list_of(number))


def list_in_session(door: Listener, number: int) -> None:
    """Do the same in a session."""
    headers = {**BOTH, "authorization": f"Bearer {number}"}
    hello = send(door, head(**headers), INITIALIZE)
    assert isinstance(hello, Passed)
    door.note_answer_head(hello.exchange, 200, f"session-{number}")
    answer(door, hello.exchange, 200, JSON, "", HELLO)
    outcome = send(door, head(**headers, mcp_session_id=f"session-{number}"), asking("tools/list"))
    assert isinstance(outcome, Passed)
    answer(door, outcome.exchange, 200, JSON, "", list_of(number))


@pytest.mark.parametrize("visit", [list_with_token, list_in_session])
def test_memory_stays_flat_with_ten_thousand_askers(
    visit: Callable[[Listener, int], None],
) -> None:
    door = listener()
    door.policy.adopt(replace(door.config, limits=Limits(sessions=REMEMBERED)))
    tracemalloc.start()
    try:
        sizes: list[int] = []
        for number in range(MANY):
            visit(door, number)
            if number + 1 in (FEW, MANY):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    few, many = sizes
    assert few > REMEMBERED * LIST_SIZE  # lists are kept, at first
    assert many - few < (MANY - FEW) * MOST_EACH, sizes
