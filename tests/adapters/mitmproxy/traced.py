"""A call that belongs to a trace, and the spans that a real collector got."""

from __future__ import annotations

import asyncio
import json

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.collector import Collector

CLIENTS = f"00-{'a' * 32}-{'1' * 16}-01"


def call(**meta: str) -> bytes:
    params = {"name": "read_file", "_meta": meta}
    said = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return json.dumps(said).encode()


CALL = call(traceparent=CLIENTS)


async def spans_of(sent_to: Collector, count: int) -> list[Span]:
    return await asyncio.to_thread(sent_to.wait_for, count)
