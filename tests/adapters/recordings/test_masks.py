"""Masks: as long as the secret, different for different ones, and known again as masks."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.recordings.scrub import Masks, is_distinctive
from mcp_tool_filter.observers.redaction.places import Secret


def mask(masks: Masks, value: str, size: int | None = None) -> str:
    return masks.of(Secret(0, size or len(value), value))


def chosen(*values: str) -> Masks:
    masks = Masks()
    masks.choose(dict.fromkeys(values, False))
    return masks


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9, 10, 11, 40])
def test_masks_are_as_long_as_their_secrets_and_differ_if_possible(length: int) -> None:
    values = [char * length for char in "abcdefghijklm"]
    masks = chosen(*values)
    found = [mask(masks, value) for value in values]
    assert {len(one) for one in found} == {length}
    assert len(set(found)) == (len(values) if length > 2 else 1)


def test_masks_do_not_change_when_secrets_are_added() -> None:
    masks = chosen("first-secret")
    before = mask(masks, "first-secret")
    masks.choose({"other-secret": False, "first-secret": False})
    assert mask(masks, "first-secret") == before
    assert masks.secrets == ["first-secret", "other-secret"]


def test_existing_masks_stay_and_their_numbers_are_not_reused() -> None:
    masks = chosen("scrubbed-7----", "xxxxx", "fresh-secret-1", "short")
    assert mask(masks, "scrubbed-7----") == "scrubbed-7----"
    assert mask(masks, "fresh-secret-1").startswith("scrubbed-8")
    assert mask(masks, "short") == "x2xxx"
    assert masks.secrets == ["fresh-secret-1", "short"]


def test_only_a_short_mask_is_padded_where_the_secret_had_escapes() -> None:
    masks = chosen('a"b', "a-long/secret")
    assert mask(masks, 'a"b', 4) == "xxxx"
    assert mask(masks, "a-long/secret", 15) == "scrubbed-2---"


@pytest.mark.parametrize(
    ("value", "found"),
    [("k7-hunter2", True), ("2026-11-18", False), ("a plain word", False), ("k7", False)],
)
def test_words_and_dates_are_not_masked_everywhere(value: str, found: bool) -> None:
    assert is_distinctive(value) == found
    assert chosen(value).distinctive == ((value,) if found else ())
