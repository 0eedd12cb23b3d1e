"""What clients made with either Python SDK share: what they answer when a server asks."""

from __future__ import annotations

from typing import Any

import scenario
from pydantic import BaseModel

try:
    import mcp_types as types  # of the SDK 2.3
except ImportError:
    from mcp import types


class AskedPlayer(scenario.Player):
    """Answers what a server asks, and remembers it."""

    async def on_sampling(self, _: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append({"method": "sampling/createMessage", "params": plain(params)})
        content = types.TextContent(type="text", text="a sample")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def on_elicitation(self, _: Any, params: Any) -> types.ElicitResult:
        self.asked.append({"method": "elicitation/create", "params": plain(params)})
        return types.ElicitResult(action="accept", content={"answer": "yes"})

    async def on_roots(self, _: Any) -> types.ListRootsResult:
        self.asked.append({"method": "roots/list", "params": None})
        return types.ListRootsResult.model_validate({"roots": [{"uri": "file:///home/ada"}]})


def plain(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
