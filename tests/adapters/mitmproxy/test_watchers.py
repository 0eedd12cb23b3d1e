"""Which observers get the messages, depending on the options; and how spans begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.mitmproxy.filtered import call, filtered
from tests.adapters.mitmproxy.test_spans import CALL, CLIENTS, spans_of
from tests.collector import Collector

OTHERS = f"00-{'c' * 32}-{'3' * 16}-01"
PLAIN_CALL = call("read_file")


@pytest.mark.parametrize(
    ("parents", "trace"),
    [([CLIENTS], "a" * 32), ([OTHERS], "c" * 32), ([CLIENTS, OTHERS], None), ([], None)],
    ids=["one", "another", "two", "none"],
)
async def test_a_span_continues_the_trace_of_the_header_if_it_names_one(
    parents: list[str], trace: str | None, sent_to: Collector, tmp_path: Path
) -> None:
    """Two parents are ambiguous, so a new trace begins."""
    headers = "".join(f"traceparent: {one}\r\n" for one in parents).encode()
    async with filtered(tmp_path, otel=["true"]) as between:
        await between.ask(PLAIN_CALL, headers)
        (span,) = await spans_of(sent_to, 1)
        (seen,) = between.upstream.asked
    if trace:
        assert span.trace_id.hex() == trace
        assert span.parent_span_id
    else:
        assert span.trace_id.hex() not in ("a" * 32, "c" * 32)
        assert not span.parent_span_id
    (ours,) = seen.all("traceparent")
    assert ours.split("-")[1:3] == [span.trace_id.hex(), span.span_id.hex()]


async def test_nothing_is_traced_unless_it_is_on(tmp_path: Path) -> None:
    async with filtered(tmp_path) as between:
        await between.ask(CALL, f"traceparent: {CLIENTS}\r\n".encode())
        (seen,) = between.upstream.asked
    assert seen.body == CALL
    assert seen.all("traceparent") == [CLIENTS]
