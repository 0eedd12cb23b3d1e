"""Request bodies with a coding, too large, too deep, or where none belongs."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from base64 import b64encode
from collections.abc import Callable

import brotli
import pytest

from mcp_tool_filter.http.exchange import Answered, Passed
from tests.http.listening import ask, listener, message_of, send
from tests.make import asking, calling, head


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("raw", [calling("read"), b"x", gzip.compress(b"", mtime=0)])
def test_an_unexpected_body_is_refused(method: str, raw: bytes) -> None:
    """An upstream may take it for the next request."""
    request_head = head(method, content_encoding="gzip" if raw.startswith(b"\x1f") else "identity")
    outcome = send(listener(), request_head, raw)
    assert message_of(outcome)[0] == 400


@pytest.mark.parametrize(
    ("coding", "code"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", brotli.compress)],
)
def test_an_encoded_request_is_judged_by_its_decoded_body(
    coding: str, code: Callable[[bytes], bytes]
) -> None:
    assert message_of(ask(code(calling("rm")), content_encoding=coding)) == (200, 1, -32601)
    outcome = ask(code(calling("read")), content_encoding=coding)
    assert isinstance(outcome, Passed)
    assert outcome.body is None


@pytest.mark.parametrize("coding", ["utf-7", "quopri", "gzip, gzip", "compress", "rot13"])
def test_a_request_in_an_unknown_coding_is_refused(coding: str) -> None:
    assert message_of(ask(calling("read"), content_encoding=coding))[0] == 400


def test_an_encoded_request_that_could_be_read_as_json_is_forwarded_decoded() -> None:
    """An upstream that does not undo codings would read another message."""
    text = b64encode(random.Random(1).randbytes(100_000)).decode()
    raw = calling("read", arguments=f'{{"x":"{text}"}}')
    coded = brotli.compress(raw)
    assert coded[:1] == b"["  # as of every stream of this size
    outcome = ask(coded, content_encoding="br")
    assert isinstance(outcome, Passed)
    assert outcome.body == raw


def test_a_body_that_decodes_to_nothing_is_refused() -> None:
    """A gzip head has room for a message; a server that does not decode could read it."""
    assert message_of(ask(gzip.compress(b""), content_encoding="gzip"))[0] == 400


def test_a_too_large_request_gets_an_error_with_its_id_if_that_can_be_read() -> None:
    """A 4xx ends the session of some clients."""
    door = listener(message_limit="1KB")
    raw = calling("read", id='"a"', arguments='{"id":5,"x":"' + "x" * 12_000 + '"}')
    assert message_of(ask(raw, door)) == (200, "a", -32600)
    assert message_of(ask(b"x" * 2000, door)) == (413, None, -32600)
    assert message_of(ask(b'{"id":1,"id":2' + b" " * 2000, door)) == (413, None, -32600)


def test_a_too_deep_request_gets_an_error_too() -> None:
    raw = calling("rm", id="7", arguments="[" * 200 + "]" * 200)
    assert message_of(ask(raw)) == (200, 7, -32600)
    assert message_of(ask(b"[" * 1_000_000)) == (413, None, -32600)


def test_a_decompression_bomb_is_too_large() -> None:
    bomb = gzip.compress(bytes(20_000_000))
    assert message_of(ask(bomb, content_encoding="gzip"))[0] == 413


def test_an_overlong_id_is_refused() -> None:
    id = '"' + "\\u0061" * 12_000 + '"'
    assert message_of(ask(asking("ping", id=id))) == (400, None, -32600)


def test_a_head_that_is_too_long_is_answered_clearly() -> None:
    said = head("POST", "/mcp", content_type="charset" * 9000)
    outcome = send(listener(), said, asking("ping"))
    text = "Request too large: a header longer than 32768 bytes"
    assert message_of(outcome) == (431, None, -32600)
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.body)["error"]["message"] == text


def test_a_batch_that_is_too_long_is_answered_clearly() -> None:
    batch = b"[" + b",".join(calling("read", id=str(id)) for id in range(1001)) + b"]"
    outcome = ask(batch)
    assert message_of(outcome) == (413, None, -32600)
    assert isinstance(outcome, Answered)
    text = "Request too large: more than 1000 messages in one batch"
    assert json.loads(outcome.body)["error"]["message"] == text


def test_json_that_is_no_message_may_have_any_number_of_elements() -> None:
    telemetry = b"[" + b",".join([b'{"event":"x"}'] * 30_000) + b"]"
    head_elsewhere = head("POST", "/events", content_type="application/json")
    assert isinstance(send(listener(), head_elsewhere, telemetry), Passed)
    wide = b"{" + b",".join(b'"%d":0' % number for number in range(30_000)) + b"}"
    assert isinstance(send(listener(), head_elsewhere, wide), Passed)
