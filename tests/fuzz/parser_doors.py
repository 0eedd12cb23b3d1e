"""The doors for patterns, and for the parsers by themselves."""

from __future__ import annotations

import contextlib
import json
import re

from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.http.bodies import decode_body
from mcp_tool_filter.policy.patterns import parse_pattern, split_patterns
from mcp_tool_filter.protocol.messages import (
    Request,
    ids_guessed_in,
    ids_in,
    is_json_rpc,
    parse_message,
    singles,
)
from tests.fuzz.oracle import require
from tests.fuzz.subject import CODINGS


def pattern_door(how: int, raw: bytes) -> None:
    """A pattern and, behind a NUL, the name it is asked about."""
    text, _, name = raw[:200].decode("utf-8", "surrogateescape").partition("\0")
    try:
        for one in split_patterns(text):
            parse_pattern(one, option="allow" if how & 1 else "deny")
        pattern = parse_pattern(text)
    except StartError:
        return
    found = pattern.matches(name[:256])
    if _is_simple(text) and "\n" not in name and len(name) < 30:
        same = re.search(text, name) is not None
        require(found == same, "a pattern that Python reads otherwise", text, name)


def _is_simple(text: str) -> bool:
    """Tell whether JavaScript and Python mean the same by a pattern."""
    plain = re.fullmatch(r"[a-z_0-9^$.*+?|()-]{0,30}", text)
    return plain is not None and not re.search(r"[*+?)][+*]|\(\?|\(\)|[|(^$][*+?]", text)


def parsers_door(how: int, raw: bytes) -> None:
    """Nothing but ProtocolError leaves a parser; what it finds is what is written."""
    with contextlib.suppress(ProtocolError):
        message = parse_message(raw)
        for one in singles(message):
            if isinstance(one, Request):
                require(one.id.encode() in raw, "an id that is not in the message", one.id)
    with contextlib.suppress(ProtocolError):
        is_json_rpc(raw)
    for id in (*ids_in(raw), *ids_guessed_in(raw)):
        json.loads(id, parse_int=str)
    with contextlib.suppress(ProtocolError):
        decode_body(raw, CODINGS[how & 7], limit=1 << 20)
