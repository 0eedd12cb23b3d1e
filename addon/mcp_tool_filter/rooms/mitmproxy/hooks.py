"""Run the other addons' hooks for a flow, without mitmproxy's search through all of them.

mitmproxy searches about 37 addons for each of four hooks and four updates, asynchronously; in
mitmdump this is most of the time that a call takes. Nearly all addons have plain functions, so we
call those directly, in the same order and with the same rules:

- an addon that raises is logged, and the next one runs; ``AddonHalt`` skips the rest;
- then ``update`` is called with the flow;
- then an intercepted flow waits until the user resumes or kills it.

Only a hook that has to wait costs more: ``run`` then returns what to wait for.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from mitmproxy.addonmanager import AddonManager, safecall
from mitmproxy.exceptions import AddonHalt, AddonManagerError
from mitmproxy.flow import Flow

from mcp_tool_filter.core.process.background import keep

type Hook = Callable[[Any], object]

_SECONDS_BETWEEN_LOOKS = 0.25
"""How often an intercepted flow is checked for having been killed, which wakes nobody."""
_NEED_SECRETS = ("proxyauth", "stickyauth", "stickycookie", "upstream_auth")
_GROUPS = {
    # They get a flow before it is masked.
    **{option.replace("_", ""): "secrets" for option in _NEED_SECRETS},
    **dict.fromkeys(("save", "savehar", "dumper"), "writers"),  # they get an answer as it was sent
    **dict.fromkeys(("nextlayer", "interception"), "ours"),  # what they do is our choice
}
"""mitmproxy's own addons that are not called like all others."""


class Hooks:
    """The hooks of all addons but ours."""

    def __init__(self, manager: AddonManager, ours: object) -> None:
        self._manager = manager
        self._ours = ours
        self.reads_secrets = False
        """Whether one of mitmproxy's addons for credentials is in use."""
        self._chain: list[object] = []
        self._inner: list[tuple[Any, list[object]]] = []
        """The addons that hold others, such as the scripts, with those that they held."""
        self._grouped: list[tuple[str, object]] = []
        self._found: dict[tuple[str, str], list[Hook]] = {}
        """Functions by the names of hooks and groups, until addons come or go."""

    def configure(self) -> None:
        """Look at the options again; to read one costs as much as a hook."""
        options = self._manager.master.options
        self.reads_secrets = any(getattr(options, name, None) for name in _NEED_SECRETS)

    def run(self, name: str, flow: Flow) -> Awaitable[None] | None:
        """Run a hook; return what to await if it has not finished."""
        functions = self._functions(name)
        for at, function in enumerate(functions):
            waiting = None  # an addon that raises does not wait
            try:
                with safecall():
                    waiting = _unfinished(function(flow))
            except AddonHalt:
                break
            if waiting is not None:
                return self._finish(waiting, functions[at + 1 :], flow)
        return self._shown(flow)

    def run_with_secrets(self, name: str, flow: Flow) -> None:
        """Run a hook of mitmproxy's addons that need the real credentials."""
        self._call_each(name, "secrets", flow)

    def tell_of_answer(self, flow: Flow) -> None:
        """Let mitmproxy's addons that write answers down have a complete one."""
        self._call_each("response", "writers", flow)
        self._shown(flow)

    def _call_each(self, name: str, group: str, flow: Flow) -> None:
        for function in self._functions(name, group):
            with suppress(AddonHalt), safecall():
                function(flow)

    async def choose_layer(self, asked: object) -> None:
        """Run the users' own hooks ``next_layer``; what mitmproxy's addon would choose is ours."""
        for function in self._functions("next_layer"):
            try:
                await _called(function, asked)
            except AddonHalt:
                return

    async def _finish(
        self, waiting: Awaitable[object], functions: Sequence[Hook], flow: Flow
    ) -> None:
        try:
            with safecall():
                await waiting
            for function in functions:
                await _called(function, flow)
        except AddonHalt:
            pass
        if (waiting_too := self._shown(flow)) is not None:
            await waiting_too

    def _shown(self, flow: Flow) -> Awaitable[None] | None:
        for function in self._functions("update"):
            with suppress(AddonHalt), safecall():
                waiting = _unfinished(function([flow]))
                if waiting is not None:
                    keep(_tasks, asyncio.ensure_future(waiting))
        return until_resumed(flow) if flow.intercepted else None

    def _functions(self, name: str, group: str = "") -> Sequence[Hook]:
        """Return a hook's functions: by default of all addons that are called in the usual way."""
        self._look()
        found = self._found.get((name, group))
        if found is None:
            groups = (group,) if group or name == "response" else ("", "writers")
            every = [_function(one, name) for of, one in self._grouped if of in groups]
            found = self._found[name, group] = [function for function in every if function]
        return found

    def _look(self) -> None:
        """Look whether addons came or went."""
        chain = self._manager.chain
        if chain == self._chain and all(list(one.addons) == was for one, was in self._inner):
            return
        self._chain = list(chain)
        self._found = {}
        self._inner, every = [], list(self._traverse(chain))
        named = [(getattr(one, "name", type(one).__name__.lower()), one) for one in every]
        self._grouped = [
            (_GROUPS.get(name, ""), one) for name, one in named if one is not self._ours
        ]

    def _traverse(self, chain: Sequence[object]) -> Iterator[object]:
        for one in chain:
            yield one
            if hasattr(one, "addons"):
                held = list(one.addons)
                self._inner.append((one, held))
                yield from self._traverse(held)


async def _called(function: Hook, argument: object) -> None:
    with safecall():
        came = function(argument)
        if inspect.isawaitable(came):
            await came


def _function(addon: object, name: str) -> Hook | None:
    function: Any = getattr(addon, name, None)
    if function is None:
        return None
    if callable(function):
        hook: Hook = function
        return hook
    if function and not isinstance(function, ModuleType):
        with safecall():
            raise AddonManagerError(f"Addon handler {name} ({addon}) not callable")
    return None


def _unfinished(came: object) -> Awaitable[object] | None:
    """Return what a hook returned if it must be awaited.

    mitmproxy starts tasks eagerly: one that never waits has ended when we get it.
    """
    if came is None or not inspect.isawaitable(came):
        return None
    task = asyncio.ensure_future(came)
    if not task.done():
        return task
    task.result()
    return None


async def until_resumed(flow: Flow) -> None:
    """Wait until the user resumes an intercepted flow, or kills it."""
    while flow.intercepted:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS_BETWEEN_LOOKS):
                await flow.wait_for_resume()


_tasks: set[asyncio.Future[object]] = set()
