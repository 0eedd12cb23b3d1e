"""Whatever becomes of a line, the chain shows it."""

from __future__ import annotations

import json

from hypothesis import assume, given
from hypothesis import strategies as st

from mcp_tool_filter.rooms.audit.entry import (
    START,
    Entry,
    LazyValue,
    check,
    hash_of,
    link,
    render,
)

ENTRIES = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=9) | st.integers(0, 9), min_size=1),
    min_size=3, max_size=6,
)  # fmt: skip


def chained(entries: list[Entry]) -> list[bytes]:
    lines, before = [], START
    for entry in entries:
        lines.append(link(render(entry), before))
        before = hash_of(lines[-1])
    return lines


@given(entries=ENTRIES)
def test_each_line_is_its_entry_and_the_hash_of_the_line_before(entries: list[Entry]) -> None:
    lines = chained([dict(entry) for entry in entries])
    assert not list(check(lines, before=START))
    for entry, line in zip(entries, lines, strict=True):
        said = json.loads(line)
        assert {**entry, "prev": said["prev"]} == said
        assert b"\n" not in line


@given(entries=ENTRIES, data=st.data())
def test_a_change_anywhere_but_in_the_last_line_is_detected(
    entries: list[Entry], data: st.DataObject
) -> None:
    lines = chained([dict(entry) for entry in entries])
    number = data.draw(st.integers(0, len(lines) - 2))
    line = lines[number]
    match data.draw(st.sampled_from(["byte", "gone", "swapped", "twice"])):
        case "byte":
            at = data.draw(st.integers(0, len(line) - 1))
            lines[number] = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
        case "gone":
            del lines[number]
        case "swapped":
            lines[number : number + 2] = [lines[number + 1], line]
        case _:
            lines.insert(number, line)
    assume(lines != chained([dict(entry) for entry in entries]))
    assert list(check(lines, before=START))


def test_unexpected_values_are_written_anyway() -> None:
    """A line that is missing would say less."""
    rendered = render({"half": "\ud800", "odd": object(), "made": LazyValue(lambda: {"a": 1}, 1)})
    said = json.loads(rendered)
    assert said["half"] == "?"
    assert said["odd"].startswith("<object")
    assert said["made"] == {"a": 1}
