"""What each Python client that logs in does with its session, and prints as JSON."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any


def arguments() -> tuple[str, float]:
    """Return the URL, and the seconds after which to ask once more."""
    return sys.argv[1], float((*sys.argv[2:], "0")[0])


async def visit(tools: list[Any], call: Callable[..., Awaitable[Any]], seconds: float) -> dict:
    """Call a tool, now and when the token has expired; return what was seen."""

    async def called() -> str:
        return (await call("read_file", {"path": "a"})).content[0].text

    seen = {"tools": [tool.name for tool in tools], "called": await called()}
    await asyncio.sleep(seconds)
    return seen | {"called_later": await called()}


def tell(seen: dict, browser: Any) -> None:
    """Print it, and where the browser was."""
    print(json.dumps(seen | {"visited": browser.visited, "iss": browser.said("iss")}))
