"""What clients made with either Python SDK share: what they answer when a server asks."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import scenario
from mcp.client.stdio import StdioServerParameters
from pydantic import BaseModel

try:
    import mcp_types as types  # of the SDK 2.3
except ImportError:
    from mcp import types


class AskedPlayer(scenario.Player):
    """Asks through ``session``; answers what a server asks, and remembers it."""

    session: Any

    def callbacks(self, name: str) -> dict[str, Any]:
        """Return what a session of either SDK wants to know of its client."""
        return {
            "sampling_callback": self.on_sampling,
            "elicitation_callback": self.on_elicitation,
            "list_roots_callback": self.on_roots,
            "message_handler": self.on_message,
            "client_info": types.Implementation(name=name, version="1.0.0"),
        }

    async def perform(self, step: scenario.Step, progress: Any) -> dict[str, Any]:
        return plain(await self.request(step, progress))

    async def request(self, step: scenario.Step, progress: Any) -> BaseModel:
        session = self.session
        match step:
            case {"list": what}:
                what = "resource_templates" if what == "templates" else what
                return await getattr(session, f"list_{what}")(**self.page(step.get("cursor")))
            case {"call": name}:
                given = step.get("arguments")
                return await session.call_tool(name, given, progress_callback=progress)
            case {"read": uri}:
                return await session.read_resource(uri)
            case {"prompt": name}:
                return await session.get_prompt(name, step.get("arguments"))
            case {"complete": prompt, "argument": argument, "value": value}:
                reference = types.PromptReference(type="ref/prompt", name=prompt)
                return await session.complete(reference, {"name": argument, "value": value})
            case _:
                raise NotImplementedError(f"this SDK cannot {step}")

    def page(self, cursor: str | None) -> dict[str, Any]:
        """Return the arguments that ask for this page of a list."""
        return {"cursor": cursor}

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


def main(kind: type[AskedPlayer], description: str, connect: Any) -> None:
    warnings.simplefilter("ignore")  # sampling, roots, logging and ping are deprecated: we know
    parser = scenario.arguments(description)
    parser.add_argument("--transport", choices=["stdio", "sse", "streamable"], default="streamable")
    parser.add_argument("--mode", default="auto", help="auto, legacy, or a modern revision")
    scenario.run(kind(parser.parse_args()), connect)


def command_in(url: str) -> StdioServerParameters:
    """Return the command that stands where others have a URL."""
    command, *words = json.loads(url)
    return StdioServerParameters(command=command, args=words, env=dict(os.environ))


def plain(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
