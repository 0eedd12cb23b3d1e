"""Of what was found, nothing overlaps, and nothing that was found is left readable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.observers.redaction.places import Findings, View, replace

TEXT = "abcdefghijklmnopqrst"
SPANS = st.lists(st.tuples(st.integers(0, 19), st.integers(1, 8)), max_size=8)


@given(spans=SPANS)
def test_each_character_of_a_secret_is_replaced_once(spans: list[tuple[int, int]]) -> None:
    found = Findings()
    for start, length in spans:
        found.mark(View.of(TEXT), start, min(start + length, len(TEXT)))
    hidden = {at for start, length in spans for at in range(start, min(start + length, 20))}
    masked = replace(TEXT, found.sorted().secrets, lambda one: "*" * len(one.value))
    assert masked == "".join("*" if at in hidden else TEXT[at] for at in range(20))


def test_each_line_is_a_secret_of_its_own_so_that_lines_stay() -> None:
    found = Findings()
    found.mark(View.of("one\r\ntwo\n"))
    assert replace("one\r\ntwo\n", found.sorted().secrets, lambda _: "*") == "*\r\n*\n"


def test_placeholders_are_not_secrets() -> None:
    found = Findings()
    for text in ("${TOKEN}", "{{ token }}", "<your token>", "****", "...", "null", "True"):
        found.mark(View.of(text))
    assert found.secrets == []
