"""The ids of messages: kept as written, compared by value, found in what cannot be read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.messages import id_value, ids_guessed_in, ids_in, parse_message
from tests.make import answering, asking, refuses, request


@pytest.mark.parametrize(
    "id", ["0", "-1", "1.0", "1.00", "1e3", "9" * 400, '""', '"\\u0061"', '"a\\"b"', '"\u2028"']
)
def test_an_id_is_kept_as_it_was_written(id: str) -> None:
    """Some clients compare it byte for byte."""
    assert request(asking("ping", id=id)).id == id


@pytest.mark.parametrize("id", ["true", "false", "{}", "[]", "[1]", '"\\ud800"'])
def test_an_id_is_a_string_or_a_number(id: str) -> None:
    assert refuses(asking("ping", id=id))


@pytest.mark.parametrize(
    ("raw", "ids"),
    [
        (b'{"id":1.0,"method":"Tools/Call"}', ["1.0"]),
        (b'{"params":{"id":2},"id":"a"}', ['"a"']),
        (b'[{"id":1},{"id":2},{}]', ["1", "2"]),
        (b'{"id":1,"id":2}', []),
        (b'{"id":1,"ID":2}', []),
        (b'{"id":null}', []),
        (b'{"id":{}}', []),
        (b'{"id":"\\ud800"}', []),
        (b'{"id":1', []),
        (b"1", []),
    ],
)
def test_a_refusal_has_an_id_only_if_it_is_certain(raw: bytes, ids: list[str]) -> None:
    assert ids_in(raw) == ids


@pytest.mark.parametrize(
    ("raw", "ids"),
    [
        (b'{"id": 1, "x', ["1"]),
        (b'{"id":"a\\"b","x', ['"a\\"b"']),
        (b'{"x":' + b" " * 10_000 + b',"id":-1.5e3}', ["-1.5e3"]),
        (b'{"id":1,"arguments":{"id":2},', ["1", "2"]),
        (b'{"id":"a\nb"}', []),
        (b'{"id":"\\x"}', []),
        (b'{"id":"\xff"}', []),
        (b'{"id":01}', []),
        (b'{"id":1-2}', []),
        (b'{"id":true}', []),
        (b'{"x":"\\"id\\":1"}', []),
    ],
)
def test_the_id_of_an_unreadable_message_is_guessed_if_it_is_a_valid_one(
    raw: bytes, ids: list[str]
) -> None:
    """It is written into our answer as it stands."""
    assert ids_guessed_in(raw) == ids


LONG = '"' + "\\u0061" * 3000 + '"'


def test_an_exponent_of_many_digits_is_not_computed() -> None:
    """Python refuses to read more than 4300 digits as a number."""
    for written in ("1e" + "9" * 5000, "1e-" + "9" * 5000):
        assert id_value(written) == id_value(written)
        assert id_value(written) != id_value("1")
    assert id_value("1e" + "0" * 5000 + "1") == id_value("10")


@pytest.mark.parametrize("raw", [asking("ping", id=LONG), answering("{}", id="9" * 20_000)])
def test_an_overlong_id_is_refused(raw: bytes) -> None:
    """We remember ids: 9 MB would be a lot to remember."""
    with pytest.raises(ProtocolError, match="an id that is longer"):
        parse_message(raw)
    assert ids_in(raw) == []


@pytest.mark.parametrize("id", ['"' + "x" * 1000 + '"', "9" * 400])
def test_a_long_honest_id_is_read(id: str) -> None:
    assert request(asking("ping", id=id)).id == id


SPELLINGS = st.sampled_from(["", ".0", "e0", "E+0", ".00e00", "0e-1", "00.0E-2"])


@given(number=st.integers(), one=SPELLINGS, other=SPELLINGS)
def test_every_spelling_of_a_number_is_the_same_id(number: int, one: str, other: str) -> None:
    assert id_value(f"{number}{one}") == id_value(f"{number}{other}") == str(number)


@given(text=st.text())
def test_every_spelling_of_a_string_is_the_same_id(text: str) -> None:
    assert id_value(json.dumps(text)) == id_value(json.dumps(text, ensure_ascii=False))


@given(one=st.text() | st.integers(), other=st.text() | st.integers())
def test_different_ids_stay_different(one: str | int, other: str | int) -> None:
    assert (id_value(json.dumps(one)) == id_value(json.dumps(other))) == (one == other)
