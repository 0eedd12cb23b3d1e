"""A proxy with rules, and the rules and messages that several tests use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.adapters.mitmproxy.filtered import Filtered, filtered
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, chunk


@asynccontextmanager
async def ruled(home: Path, rules: str, **options: Any) -> AsyncIterator[Filtered]:
    """Open an upstream, a proxy with these rules (a YAML list), and a client."""
    async with filtered(home, rules=[write(home, rules)], **options) as between:
        yield between


def write(home: Path, rules: str, top: str = "") -> str:
    path = home / "rules.yaml"
    path.write_text(f"interceptor:\n{top}  rules:\n{rules}")
    return str(path)


def blocked(rule: str, reason: str, id: str = "1", action: str = "block") -> bytes:
    data = f'{{"rule":"{rule}","action":"{action}"}}'
    error = f'{{"code":-32001,"message":"{reason}","data":{data}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


BLOCK = """
  - id: no-etc
    conditions: [tool_equals: read_file, param_matches: {field: arguments.path, pattern: ^/etc}]
    actions: [block: not there]
"""

REDACT = """
  - id: secrets
    conditions: [tool_equals: read_file]
    on: response
    actions: [redact: {pattern: "sk-[a-z0-9]+"}]
"""

SECRET = b'{"jsonrpc":"2.0","id":1,"result":{"content":[ {"type":"text","text":"sk-1 a"}],"n":1.0}}'

HIDDEN = SECRET.replace(b"sk-1", b"***")


def streaming(*events: bytes) -> Callable[[RawRequest, Peer], Coroutine[Any, Any, None]]:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        body = b"".join(map(chunk, events))
        await peer.say(SSE_HEAD + body + LAST_CHUNK)

    return respond


PING = b'{"jsonrpc":"2.0","id":9,"method":"ping"}'
