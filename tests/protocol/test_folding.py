"""Careless readers take a key for another: in another case, of another width, with a NUL in it."""

from __future__ import annotations

import pytest

from mcp_tool_filter.protocol.folding import fold


def test_a_long_key_of_marks_is_not_normalized() -> None:
    """Normalizing is quadratic in a run of combining marks."""
    assert fold("name" + "\u0301\u0316" * 500_000) == "name"
    assert fold("\u00e9" * 1_000_000) == "\u00e9" * 1_000_000


@pytest.mark.parametrize(
    "key",
    [
        "NAME",
        " name ",
        "name\0",
        "name\0x",
        "\uff4e\uff41\uff4d\uff45",
        "n\u200bame",
        "na\ud800me",
        "name\u0301",
        "\x7fname",
        "na\tme",
        "name\u00a0",
        "\ufeffname",
    ],
    ids=ascii,
)
def test_a_key_folds_like_a_lenient_reader_reads_it(key: str) -> None:
    assert fold(key) == "name"


@pytest.mark.parametrize("key", ["param\u017f", "PARAM\u017f"], ids=ascii)
def test_letters_that_fold_only_in_some_languages_fold(key: str) -> None:
    """Go matches a long s to an s; Java a dotless i to an i."""
    assert fold(key) == "params"
    assert fold("\u0131d") == fold("\u0130d") == "id"
