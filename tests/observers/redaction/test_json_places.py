"""Where strings stand in JSON, and which are secret by a name above or beside them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.observers.redaction.names import is_secret_name
from mcp_tool_filter.observers.redaction.places import View, documents_in, places_in

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


@given(document=JSON)
def test_every_string_that_is_a_value_has_a_place(document: object) -> None:
    strings: list[str] = []

    def collect(part: object) -> None:
        if isinstance(part, str):
            strings.append(part)
        for one in part if isinstance(part, list) else []:
            collect(one)
        for one in part.values() if isinstance(part, dict) else []:
            collect(one)

    collect(document)
    places = [
        place.view.text for place in places_in(View.of(json.dumps(document)), lambda _: False)
    ]
    for text in strings:
        assert json.dumps(text)[1:-1] in places


@pytest.mark.parametrize(
    ("document", "secrets"),
    [
        ({"password": "p"}, ["p"]),
        ({"password": 123456}, ["123456"]),
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
        (
            {"passwords": ["p", "q"], "apiKeys": ["k"], "recovery_codes": ["r"]},
            ["p", "q", "k", "r"],
        ),
        ({"passwords": {"alice": "p"}, "secrets": {"DB": "s"}}, ["p", "s"]),
        ({"properties": {"secrets": {"type": "object"}, "passwords": {"type": "array"}}}, []),
        (
            {"access_tokens": ["a"], "tokens": ["a8S7d6f5g4h3j2k1l0", "cat"]},
            ["a", "a8S7d6f5g4h3j2k1l0"],
        ),
        ({"max_tokens": 123456, "usage": {"input_tokens": 12345}, "nextPageToken": "n"}, []),
        ({"keys": [{"d": "D", "n": "N", "kty": "RSA", "p": "P", "qi": "Q"}]}, ["D", "P", "Q"]),
        ({"kty": "oct", "k": "K"}, ["K"]),
        ({"d": "D", "k": "K", "p": "P"}, []),
        (
            {"auths": {"h": {"auth": "Ym9iOmh1bnRlcjI=", "identitytoken": "i"}}},
            ["Ym9iOmh1bnRlcjI=", "i"],
        ),
        ({"auth": "none", "oauth": {"auth": "basic"}}, []),
        (
            {"client-key-data": "c", "PSK": "w", "db_pw": "d", "connectionstring": "s"},
            ["c", "w", "d", "s"],
        ),
    ],
)
def test_secrets_are_recognised_by_their_names(document: object, secrets: list[str]) -> None:
    assert secrets_in(document) == secrets
