"""Where secrets stand: in free text, in JSON, and in escaped texts."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.rooms.secrets.finder import named_values_in
from mcp_tool_filter.rooms.secrets.names import is_secret_name
from mcp_tool_filter.rooms.secrets.places import (
    Findings,
    View,
    documents_in,
    joined,
    places_in,
    replace,
    unescape_json,
    unescape_percent,
)
from tests.rows import each_row

# A text that was unescaped still knows where each of its characters stood
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


# Of what was found, nothing overlaps, and nothing that was found is left readable
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


# Where strings stand in JSON, and which are secret by a name above or beside them
JSON = st.recursive(
    st.text(max_size=5) | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def secrets_in(document: object) -> list[str]:
    view = View.of(json.dumps(document))
    return [place.view.text for place in places_in(view, is_secret_name) if place.is_secret]


@given(document=JSON, before=st.text("ab {[", max_size=5), after=st.text("xy", max_size=5))
def test_documents_are_found_within_any_text(document: object, before: str, after: str) -> None:
    whole = json.dumps({"it": document})
    text = before + whole + after
    spans = list(documents_in(text))
    assert any(start <= len(before) and end >= len(before + whole) for start, end in spans)


def strings_in(part: object) -> list[str]:
    if isinstance(part, str):
        return [part]
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
    return [text for one in inner for text in strings_in(one)]


@given(document=JSON)
def test_every_string_that_is_a_value_has_a_place(document: object) -> None:
    view = View.of(json.dumps(document))
    places = {place.view.text for place in places_in(view, lambda _: False)}
    assert {json.dumps(text)[1:-1] for text in strings_in(document)} <= places


@each_row(("document", "secrets"), [
    ({"password": "p"}, ["p"]), ({"password": 123456}, ["123456"]),
    ({"password": {"type": "string", "value": "p"}}, ["p"]),
    ({"tokens": {"access": "a", "kind": "x"}}, ["a"]),
    ({"headers": {"authorization": "a", "accept": "b"}}, ["a"]),
    ({"cookies": {"anything": "c"}}, ["c"]),
    ([["X-Api-Key", "abc123"], ["Accept", "abc123"]], ["abc123"]),
    ({"name": "DB_PASSWORD", "value": "p", "value2": "q"}, ["p"]),
    ({"grant_type": "authorization_code", "code": "c1"}, ["c1"]),
    ({"language": "python", "code": "c1"}, []),
    ({"sessionId": "0123456789abcdef"}, ["0123456789abcdef"]),
    ({"sessionId": "main"}, []),
    ({"passwords": ["p", "q"], "apiKeys": ["k"], "recovery_codes": ["r"]}, ["p", "q", "k", "r"]),
    ({"passwords": {"alice": "p"}, "secrets": {"DB": "s"}}, ["p", "s"]),
    ({"properties": {"secrets": {"type": "object"}, "passwords": {"type": "array"}}}, []),
    ({"access_tokens": ["a"], "tokens": ["a8S7d6f5g4h3j2k1l0", "cat"]},
     ["a", "a8S7d6f5g4h3j2k1l0"]),
    ({"max_tokens": 123456, "usage": {"input_tokens": 12345}, "nextPageToken": "n"}, []),
    ({"keys": [{"d": "D", "n": "N", "kty": "RSA", "p": "P", "qi": "Q"}]}, ["D", "P", "Q"]),
    ({"kty": "oct", "k": "K"}, ["K"]), ({"d": "D", "k": "K", "p": "P"}, []),
    ({"auths": {"h": {"auth": "Ym9iOmh1bnRlcjI=", "identitytoken": "i"}}},
     ["Ym9iOmh1bnRlcjI=", "i"]),
    ({"auth": "none", "oauth": {"auth": "basic"}}, []),
    ({"client-key-data": "c", "PSK": "w", "db_pw": "d", "connectionstring": "s"},
     ["c", "w", "d", "s"]),
])  # fmt: skip
def test_secrets_are_recognised_by_their_names(document: object, secrets: list[str]) -> None:
    assert secrets_in(document) == secrets


# Values in free text that are secret by the name before them
@each_row(("text", "values"), [
    ("password=p-1&x=2", ["p-1"]), ('api_key: "two words"', ["two words"]),
    ("--api-key k3yk3y next", ["k3yk3y"]), ("password=$PASSWORD", []), ("token=args.token", []),
    ("password: please", []), ("Cookie: a=1; b=2", ["a=1; b=2"]),
    ("<password>p-1</password>", ["p-1"]),
    ("the password is Zq7Hidden9Secret", ["Zq7Hidden9Secret"]),
])  # fmt: skip
def test_a_value_after_a_secret_name_is_found(text: str, values: list[str]) -> None:
    found = [text[one.start : one.end] for one in named_values_in(text, is_secret_name)]
    assert [one.strip() for one in dict.fromkeys(found)] == values
