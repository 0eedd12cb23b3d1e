"""An event that a rule holds, on sockets."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands.proxying import CALL
from tests.core.sockets.test_serve import READ, filtered
from tests.mcp_upstream import RESULT
from tests.raw_client import post
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, chunk


async def test_an_event_that_a_rule_holds_is_sent_after_the_upstream_left(tmp_path: Path) -> None:
    """Other requests that wait on the stream get an error."""
    rules = "  - {id: w, conditions: [tool_equals: read_file], on: response, actions: [delay: 1s]}"
    (tmp_path / "rules.yaml").write_text(f"interceptor:\n  rules:\n{rules}\n")

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(b"data: " + RESULT + b"\n\n"))
        peer.close()

    async with filtered(respond, rules=str(tmp_path / "rules.yaml")) as (_, _, client):
        asked = b"[%b,%b]" % (READ.replace(b'"id":"1"', b'"id":1'), CALL % (2, b"read_file"))
        await client.say(post(asked))
        await client.head()
        rest, _ = await client.rest_of_chunks()
        first, second = rest.split(b"\n\n")[:2]
        assert first == b"data: " + RESULT
        assert json.loads(second.removeprefix(b"data: "))["error"]["code"] == -32000
