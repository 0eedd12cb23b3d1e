"""Whatever bytes come: places are in order, JSON stays JSON, and looking again finds the same."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tool_filter.rooms.secrets.finder import SecretFinder, redact
from mcp_tool_filter.rooms.secrets.places import replace

PIECES = [
    b'{"', b'":"', b'"}', b"password", b"token=", b"&code=abcdef", b"data: ", b"\n\n", b"\r",
    b"%22", b"\\u0061", b"\\", b"--x", b'name="', b"://u:p@h", b"Bearer abcdef123",
    b"ghp_0123456789abcdef", b"-----BEGIN PRIVATE KEY-----", b"-----END", b"eyJhbGciOi.eyJ.",
    b"=", b"[", b"]", b"\xff", b"\0", "é".encode(), b"cookie: a=b;", b"<token>",
    b"Z2hwXzAxMjM0NTY3ODlhYmNkZWZnaGk=",
]  # fmt: skip
KINDS = ["", "application/json", "text/event-stream", "application/x-www-form-urlencoded",
         "multipart/form-data; boundary=x", "text/plain; charset=latin1", "image/png"]  # fmt: skip

pieces, names = st.sampled_from(PIECES), ["password", "code", "state", "name", "value", "a"]
bodies = st.lists(pieces | st.binary(max_size=5), max_size=25).map(b"".join)
texts = st.text(max_size=20) | pieces.map(lambda piece: piece.decode("latin-1"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(names), inner),
    max_leaves=12,
)


@given(body=bodies, kind=st.sampled_from(KINDS))
def test_places_are_in_order_and_within_the_body(body: bytes, kind: str) -> None:
    found = SecretFinder(known=("ab", "\xff")).in_body(body, kind).secrets
    ends = [0, *(end for one in found for end in (one.start, one.end)), len(body)]
    assert ends == sorted(ends)
    text = body.decode("latin-1")
    assert len(replace(text, found, lambda one: "x" * (one.end - one.start))) == len(text)


@given(value=values)
@example(value={"password": "a\\", "b": '"'})
@example(value={"password": "é\U0001f600"})
def test_json_stays_json(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        json.loads(redact(text))
    within = {"text": json.dumps(value)}
    json.loads(json.loads(redact(json.dumps(within)))["text"])


@given(value=values)
def test_redacting_twice_changes_nothing(value: object) -> None:
    once = redact(json.dumps(value), "-")
    assert redact(once, "-") == once
