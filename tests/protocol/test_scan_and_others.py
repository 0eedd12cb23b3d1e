"""Our reader beside others: json, orjson and node."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.scan import scan
from tests.protocol.json_texts import NOT_JSON, ODD_BUT_LEGAL

NODE = shutil.which("node")

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)

WRITINGS = st.sampled_from([
    {},
    {"ensure_ascii": False},
    {"indent": 1},
    {"indent": "\t", "separators": (" ,", " : ")},
])  # fmt: skip


@given(value=JSON_VALUES, writing=WRITINGS)
def test_every_json_text_is_read(value: object, writing: dict[str, Any]) -> None:
    raw = json.dumps(value, **writing).encode("utf-8", "surrogatepass")
    text, root = scan(raw, {})
    assert text[slice(*root.span)] == raw.decode()


# Bytes that mostly look like JSON: whole texts, cut, repeated and put together at random.
SCRAPS = st.sampled_from([*ODD_BUT_LEGAL, *NOT_JSON, b",", b":", b'"a"', b"[1", b'{"a":'])

SOUP = st.lists(SCRAPS | st.binary(max_size=3), max_size=6).map(b"".join)


@given(raw=SOUP)
@settings(max_examples=300)
def test_only_protocol_errors_are_raised(raw: bytes) -> None:
    with suppress(ProtocolError):
        scan(raw, {"a": {"a": {}}})


@given(raw=SOUP)
@settings(max_examples=300)
def test_everything_that_orjson_reads_is_read(raw: bytes) -> None:
    """But not the other way round: it refuses half a surrogate pair, and 400 digits."""
    assert reads(raw) or not orjson_reads(raw) or is_deep(raw)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@given(raws=st.lists(SOUP, min_size=50, max_size=50))
@example(ODD_BUT_LEGAL + NOT_JSON)
@settings(max_examples=3)
def test_exactly_what_node_reads_is_read(raws: list[bytes]) -> None:
    """One byte order mark, bytes that are no UTF-8 and depth set us apart: those we refuse."""
    for raw, theirs in zip(raws, node_reads(raws), strict=True):
        assert theirs == reads(raw) or is_odd_text(raw) or is_deep(raw)


def reads(raw: bytes) -> bool:
    try:
        scan(raw, {"a": {}})
    except ProtocolError:
        return False
    return True


def orjson_reads(raw: bytes) -> bool:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return False
    return True


def is_deep(raw: bytes) -> bool:
    return raw.count(b"[") + raw.count(b"{") > 128


def is_odd_text(raw: bytes) -> bool:
    try:
        return raw.decode().startswith("\ufeff")
    except UnicodeDecodeError:
        return True


def node_reads(raws: list[bytes]) -> list[bool]:
    """Ask node which texts it reads: one process for all of them."""
    script = (
        "const said = require('fs').readFileSync(0, 'utf8').split('\\n').slice(0, -1);"
        "const reads = (hex) => { try {"
        " JSON.parse(Buffer.from(hex, 'hex').toString('utf8')); return true }"
        " catch { return false } };"
        "console.log(JSON.stringify(said.map(reads)))"
    )
    lines = "".join(raw.hex() + "\n" for raw in raws)
    assert NODE
    done = subprocess.run([NODE, "-e", script], input=lines, capture_output=True, text=True)
    answers: list[bool] = json.loads(done.stdout)
    return answers
