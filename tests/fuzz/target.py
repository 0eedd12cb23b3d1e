"""What the fuzzer calls: bytes to one of our doors, and what leaves there held to the promises.

The first byte chooses the door, the second its circumstances; the rest is what comes in.
"""

from __future__ import annotations

from collections.abc import Callable

from mcp_tool_filter.core.conversation import conversation as from_upstream
from mcp_tool_filter.core.conversation.memory import Sessions
from mcp_tool_filter.core.http.asked import LegacyEndpoints
from mcp_tool_filter.core.messages import large, scan
from mcp_tool_filter.core.messages import skim as long_values
from mcp_tool_filter.core.policy.effects import at_once
from tests.fuzz import doors
from tests.fuzz.rules import judge_by_rules
from tests.fuzz.subject import BETWEEN, LISTENER, PAGES, SNAPSHOT
from tests.fuzz.tokens import TOKENS


def run(raw: bytes) -> None:
    """Push the bytes through the door they choose. Raises Violation for a broken promise."""
    if len(raw) < 2:
        return
    try:
        for from_upstream._LEAST, scan._LARGE, long_values._LONG, large._LONGEST_REST in _LEAST:
            LISTENER.sessions = Sessions()
            _forget_lists()
            LISTENER.legacy = LegacyEndpoints()
            DOORS[raw[0] % len(DOORS)](raw[1], raw[2:])
    finally:  # other tests of this process count on them
        from_upstream._LEAST, scan._LARGE, long_values._LONG, large._LONGEST_REST = _USUAL


def _forget_lists() -> None:
    """Begin with the list of the start, whatever the upstream has said of it since."""
    kinds = LISTENER.policy.kinds
    kinds.forget_all()
    if kinds.start.is_stale or kinds.start.snapshot is not SNAPSHOT:
        at_once(kinds.start.take((PAGES,)))


_START = LISTENER.policy.kinds.start._listed
"""Kept: the same list is known again as long as it is in use."""
_USUAL = from_upstream._LEAST, scan._LARGE, long_values._LONG, large._LONGEST_REST
_LEAST = (
    (0, scan._LARGE, long_values._LONG, large._LONGEST_REST),
    (from_upstream._LEAST, 0, 0, large._LONGEST_REST),
    (from_upstream._LEAST, scan._LARGE, long_values._LONG, -1),
)
"""As if each result, and then each value, was long enough for its short way; and the usual way."""


def _by_rules(how: int, raw: bytes) -> None:
    """What a client says under some policy, and behind two NULs what the upstream says to it."""
    said, _, heard = raw.partition(BETWEEN)
    judge_by_rules(how, said, heard)


def _spelled(how: int, numbers: bytes) -> None:
    """Each byte is the number of a word: what comes of it is more often nearly a message."""
    if numbers:
        raw = b"".join(TOKENS[number % len(TOKENS)] for number in numbers[1:400])
        DOORS[how % (len(DOORS) - 1)](numbers[0], raw)


DOORS: tuple[Callable[[int, bytes], None], ...] = (
    doors.request_door, doors.request_with_head_door, doors.answer_door, doors.coded_answer_door,
    doors.stream_door, doors.spoken_door, doors.pattern_door, doors.parsers_door,
    doors.exchange_door, doors.lines_door, _by_rules, _spelled,
)  # fmt: skip
