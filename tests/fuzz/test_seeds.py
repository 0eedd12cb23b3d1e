"""The fuzzer's target over all that it begins with: the oracles themselves are tested."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random

import pytest

from mcp_tool_filter.policy.verdict import Forward
from tests.fuzz.oracle import Violation
from tests.fuzz.seeds import seeds, tokens
from tests.fuzz.target import DOORS, run

pytestmark = pytest.mark.rest

_SEEDS = seeds()


@pytest.mark.parametrize("door", range(len(DOORS)))
def test_no_seed_breaks_a_promise(door: int) -> None:
    seeds_of_door = [seed for seed in _SEEDS if seed[0] % len(DOORS) == door]
    assert seeds_of_door
    for seed in seeds_of_door:
        run(seed)


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


@pytest.mark.parametrize(
    ("where", "instead"),
    [
        ("policy.tool_filter.decide_call", _forward),
        ("policy.tool_filter.decide_listing", _forward),
        ("protocol.messages.refuse_repeated", _nothing),
        ("protocol.messages.is_like_a_call", _nothing),
        ("protocol.messages._holds_message", _nothing),
        ("protocol.messages.fold", _as_it_is),
        ("protocol.tools.refuse_misreadable", _nothing),
        ("protocol.tools._folded", _as_it_is),
        ("policy.tool_filter.shows_tool", _nothing),
        ("protocol.tools.shows_tool_beside_content", _nothing),
        ("http.bodies.shows_tool", _nothing),
        ("conversation.conversation.shows_tool", _nothing),
        ("http.head._is_utf8", _yes),
        ("http.head._spells_a_call", _nothing),
        ("http.head.problem_in_fields", _nothing),
        ("http.listener.problem_in_body", _nothing),
        ("http.exchange.problem_in_mirrored", _nothing),
        ("http.listener.could_show_tool", _nothing),
        ("http.listener.kept_with_us", _as_it_is),
        ("http.exchange.HttpExchange.with_owed", _nothing_added),
        ("adapters.stdio.judge.refuse_hidden_line", _nothing),
        ("rules.chain._refuse_unclear", _nothing),
        ("rules.fields.could_be", _nothing),
        ("rules.fields.Document.find", _nothing_found),
        ("rules.edits._unescaped", _as_it_is),
        ("rules.chain._Walk._follow_rules", _nothing_found),
    ],
)
def test_a_weakened_filter_is_detected(
    where: str, instead: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(Where another place would refuse the same, it takes both, and is not in this list.)"""
    monkeypatch.setattr(f"mcp_tool_filter.{where}", instead)
    assert next(_noticed(), None)


def _noticed() -> Iterator[str]:
    for seed in Random(1).sample(_SEEDS, len(_SEEDS)):  # of all doors, for the first is found soon
        try:
            run(seed)
        except Violation as violation:
            yield str(violation)


def test_the_dictionary_is_valid_for_libfuzzer() -> None:
    assert all(re.fullmatch(r'"(?:\\x[0-9a-f]{2})+"', line) for line in tokens().splitlines())
