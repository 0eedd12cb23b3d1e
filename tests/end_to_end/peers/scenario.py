"""What a client is asked to do: a JSON list of steps, one outcome for each.

    {"list": "tools" | "resources" | "templates" | "prompts", "cursor": …}    one page; without a
                                cursor the TypeScript SDK 2.4 fetches all pages and gives one list
    {"call": name, "arguments": {…}, "progress": true}
    {"read": uri}   {"prompt": name, "arguments": {…}}
    {"complete": prompt, "argument": name, "value": begun}
    {"sleep": ms}
    {"listen": ["tools", "prompts", "resources"]}    2026-07-28: open until the client leaves
    {"await": "notifications/…"}                     until it has been seen, since the start
    {"cancel": step, "after": ms}                    begin the step, then take it back
    {"parallel": [step, …]}                          all at once; outcomes in the order of the steps

Any step may say "timeout": seconds (10 if it does not). An outcome is {"result": …} as the SDK saw
it, with "progress": [[done, total, message], …] where asked for; or {"error": {code, message}};
or {"timeout": seconds}; or {"cancelled": true}; {"outcomes": […]} for parallel steps.

The document a client prints: {"server": …, "protocol": revision, "session": id or null, "outcomes":
[…], "notifications": [{method, params}, …], "asked": [{method, params}, …]}, the last two being
what the server sent and asked of its own. If connecting failed there is an "error", and no outcome;
if parting failed, there is "parting": {code, message}.

A client reads its scenario from the argument after the URL, or from stdin. With `-i` it
reads one step a line from stdin, prints its outcome at once, and the document last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import traceback
from collections.abc import AsyncIterator
from typing import Any

Step = dict[str, Any]
Outcome = dict[str, Any]


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE")
    parser.add_argument("-i", "--interactive", action="store_true", help="a step a line")
    parser.add_argument("url")
    parser.add_argument("scenario", nargs="?", help="JSON; from stdin if it is not given")
    return parser


def headers_of(args: argparse.Namespace) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (h.partition(":") for h in args.header)}


async def steps_of(args: argparse.Namespace) -> AsyncIterator[Step]:
    if args.interactive:
        while line := await asyncio.to_thread(sys.stdin.readline):
            yield json.loads(line)
    else:
        for step in json.loads(args.scenario or sys.stdin.read()):
            yield step


class Player:
    """Plays steps on a client session; an SDK says in a subclass how one is done."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.notifications: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.outcomes: list[Outcome] = []
        self.met: dict[str, Any] | None = None  # server, protocol, session; once connected
        self._noticed = asyncio.Condition()
        self._tell_at_once = args.interactive

    async def perform(self, step: Step, progress: Any) -> dict[str, Any]:
        """Do what no other step is made of; return the result as JSON."""
        raise NotImplementedError

    async def cancel(self, step: Step, after: float) -> None:
        raise NotImplementedError

    async def play(self) -> None:
        async for step in steps_of(self.args):
            outcome = await self.outcome_of(step)
            self.outcomes.append(outcome)
            if self._tell_at_once:
                tell(outcome)

    async def outcome_of(self, step: Step) -> Outcome:
        seconds = step.get("timeout", 10)
        told: list[Any] = []

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            told.append([done, total, message])

        try:
            async with asyncio.timeout(seconds):
                if "parallel" in step:
                    steps = [self.outcome_of(part) for part in step["parallel"]]
                    return {"outcomes": await asyncio.gather(*steps)}
                if "sleep" in step:
                    await asyncio.sleep(step["sleep"] / 1000)
                    return {"result": {}}
                if "await" in step:
                    return {"result": await self._seen(step["await"])}
                if "cancel" in step:
                    await self.cancel(step["cancel"], step.get("after", 100) / 1000)
                    return {"cancelled": True}
                result = await self.perform(step, on_progress if step.get("progress") else None)
        except TimeoutError:
            return {"timeout": seconds}
        except Exception as error:
            return {"error": described(error)}
        return {"result": result} | ({"progress": told} if step.get("progress") else {})

    async def notice(self, notification: dict[str, Any]) -> None:
        self.notifications.append(notification)
        async with self._noticed:
            self._noticed.notify_all()

    async def _seen(self, method: str) -> dict[str, Any]:
        async with self._noticed:
            while True:
                for notification in self.notifications:
                    if notification["method"] == method:
                        return notification
                await self._noticed.wait()

    def document(self) -> dict[str, Any]:
        return (self.met or {}) | {
            "outcomes": self.outcomes,
            "notifications": self.notifications,
            "asked": self.asked,
        }


def described(error: BaseException) -> dict[str, Any]:
    """An error as {code, message}: of the first that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = getattr(error, "error", None)  # McpError, MCPError
    code = getattr(said, "code", None)
    message = str(getattr(said, "message", None) or error)
    return {"code": code, "message": message, "type": type(error).__name__}


def tell(document: dict[str, Any]) -> None:
    print(json.dumps(document, ensure_ascii=False), flush=True)


def run(player: Player, connect: Any) -> None:
    """Connect, play, print the document: whatever happens."""

    async def attempt() -> None:
        trouble = {}
        try:
            await connect(player)
        except BaseException as error:
            traceback.print_exc()
            trouble["parting" if player.met else "error"] = described(error)
        tell(player.document() | trouble)

    asyncio.run(attempt())
