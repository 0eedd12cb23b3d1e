"""A text that was unescaped still knows where each of its characters stood."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.observers.redaction.places import View, joined, unescape_json, unescape_percent

ASCII = st.text(st.characters(max_codepoint=127))


@given(text=st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])))
def test_json_is_unescaped_and_each_character_has_its_place(text: str) -> None:
    raw = json.dumps(text)[1:-1]
    view = unescape_json(View.of(raw))
    assert view.text == text
    pieces = [raw[slice(*view.raw_span(at, at + 1))] for at in range(len(text))]
    assert "".join(pieces) == raw
    assert [json.loads(f'"{piece}"') for piece in pieces] == list(text)


@given(text=ASCII)
def test_percent_escapes_are_undone_and_each_character_has_its_place(text: str) -> None:
    for raw, plus, undo in ((quote(text), False, unquote), (quote_plus(text), True, unquote_plus)):
        view = unescape_percent(View.of(raw), plus=plus)
        assert view.text == text
        pieces = [raw[slice(*view.raw_span(at, at + 1))] for at in range(len(text))]
        assert [undo(piece) for piece in pieces] == list(text)


@given(text=ASCII, data=st.data())
def test_doubly_escaped_text_maps_to_the_outermost_text(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    raw = json.dumps(json.dumps(text)[1:-1])[1:-1]
    inner = unescape_json(unescape_json(View.of(raw)))
    part = inner.part(start, end)
    assert part.text == text[start:end]
    outer = raw[slice(*part.raw_span(0, len(part.text)))]
    assert json.loads(f'"{json.loads(f'"{outer}"')}"') == part.text


def test_lines_that_are_joined_keep_their_places() -> None:
    whole = View.of("data: ab\ndata: cd")
    view = joined([whole.part(6, 8), whole.part(15, 17)])
    assert view.text == "ab\ncd"
    assert [view.raw_span(at, at + 1)[0] for at in (0, 1, 3, 4)] == [6, 7, 15, 16]
    assert joined([]).text == ""
