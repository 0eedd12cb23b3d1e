"""Hears what an upstream behind a URL says, as the pipe does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_tool_filter.adapters.sockets.connect import HttpFailed
from mcp_tool_filter.protocol.lines import CutLine


@dataclass
class UrlListener:
    heard: list[bytes | CutLine] = field(default_factory=list)
    failed: list[tuple[tuple[str, ...], int, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    was_missed: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self, said: bytes | CutLine) -> None:
        self.heard.append(said)

    def waits_for(self, ids: Sequence[str]) -> bool:
        answered = [str(json.loads(one).get("id")) for one in self.heard if isinstance(one, bytes)]
        return not set(ids) <= {*answered, *(id for ids, *_ in self.failed for id in ids)}

    async def fail(self, ids: Sequence[str], code: int, text: str) -> None:
        if waiting := tuple(id for id in ids if self.waits_for([id])):
            self.failed.append((waiting, code, text))

    async def missed(self, error: HttpFailed) -> None:
        self.problems.append(f"{type(error).__name__}: {error}")
        self.was_missed.set()
