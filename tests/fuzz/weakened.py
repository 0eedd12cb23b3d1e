"""Weakens the filter in one way, or in none, and prints what the oracles notice first.

`python -m tests.fuzz.weakened policy.tool_filter.decide_call`. In a process of its own, because a
weakened filter learns what it should not, and would still be found out when it is whole again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from unittest.mock import patch

from mcp_tool_filter.core.policy.verdict import Forward
from tests.fuzz.oracle import Violation
from tests.fuzz.seeds import seeds
from tests.fuzz.target import run


def _nothing(*_: object, **__: object) -> None:
    """Refuse nothing, find nothing."""


def _yes(*_: object, **__: object) -> bool:
    return True


def _forward(*_: object, **__: object) -> Forward:
    return Forward()


def _as_it_is(text: str, *_: object) -> str:
    return text


def _nothing_found(*_: object) -> list[object]:
    return []


def _nothing_added(_: object, body: bytes) -> bytes:
    return body


WAYS: dict[str, Callable[..., object]] = {
    "core.policy.tool_filter.decide_call": _forward,
    "core.policy.tool_filter.decide_listing": _forward,
    "core.messages.messages.refuse_repeated": _nothing,
    "core.messages.messages.is_like_a_call": _nothing,
    "core.policy.tool_filter.undefined_topic": _nothing,
    "core.messages.messages._holds_message": _nothing,
    "core.messages.messages.fold": _as_it_is,
    "core.messages.tool_requests.refuse_misreadable": _nothing,
    "core.messages.tools.fold_key": _as_it_is,
    "core.policy.tool_filter.shows_tool": _nothing,
    "core.messages.tools.shows_tool_beside_content": _nothing,
    "core.http.bodies.shows_tool": _nothing,
    "core.conversation.conversation.shows_tool": _nothing,
    "core.http.head._is_utf8": _yes,
    "core.http.head._spells_a_call": _nothing,
    "core.http.head.problem_in_fields": _nothing,
    "core.http.listener.problem_in_body": _nothing,
    "core.http.asked.problem_in_mirrored": _nothing,
    "core.http.listener.could_show_tool": _nothing,
    "core.http.listener.kept_with_us": _as_it_is,
    "core.http.asked.HttpExchange.with_owed": _nothing_added,
    "rooms.stdio.judge.refuse_hidden_line": _nothing,
    "rooms.rules.chain.Run.refuse_unclear": _nothing,
    "rooms.rules.fields.could_be": _nothing,
    "rooms.rules.fields.Document.find": _nothing_found,
    "rooms.rules.edits._unescaped": _as_it_is,
    "rooms.rules.chain.Run._follow_rules": _nothing_found,
}
"""The places to weaken, and what stands there instead."""

TOGETHER = [("core.messages.messages.is_like_a_call", "core.policy.tool_filter.undefined_topic")]
"""Places that each refuse what the other one refuses: alone, none of them is missed."""

_BACKED = {place for row in TOGETHER for place in row}
ROWS = [*TOGETHER, *((place,) for place in WAYS if place not in _BACKED)]


def main(places: list[str]) -> str | None:
    """Return what was noticed first, if anything was."""
    for place in places:
        patch(f"mcp_tool_filter.{place}", WAYS[place]).start()
    all_seeds = seeds()
    for seed in Random(1).sample(all_seeds, len(all_seeds)):  # of all doors: soon one notices
        try:
            run(seed)
        except Violation as violation:
            return str(violation)
    return None


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]) or "")
