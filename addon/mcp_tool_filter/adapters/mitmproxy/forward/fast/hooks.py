"""Run only the hooks that addons have, and do not wait for hooks that finish at once.

mitmproxy searches about 35 addons for each hook, eight times per request: half of mitmdump's work.
Here we search once, and again only when the addons change.

We use these internals of mitmproxy: the chain of ``AddonManager``, whose addons may contain others,
and that only its three methods here call addons.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from inspect import isawaitable
from operator import is_
from typing import Any, NamedTuple, cast

from mitmproxy.addonmanager import AddonManager, safecall, traverse
from mitmproxy.exceptions import AddonHalt
from mitmproxy.flow import Flow
from mitmproxy.hooks import Hook, UpdateHook
from mitmproxy.log import AddLogHook
from mitmproxy.master import Master

_UPDATE = UpdateHook([])
_fields: dict[type[Hook], list[str]] = {}


class Handler(NamedTuple):
    function: Callable[..., Any]
    next_group: int
    """The index of the first handler after those of this addon and of the addons it contains."""


class QuickAddonManager(AddonManager):
    """Remembers which addons have each hook."""

    def __init__(self, master: Master) -> None:
        super().__init__(master)  # type: ignore[no-untyped-call]  # mitmproxy gives it no types
        self.forget()

    def forget(self) -> None:
        self._chain: list[object] = []
        self._groups: list[object] = []
        self._members: list[object] = []
        self._handlers: dict[str, Sequence[Handler]] = {}
        self._tells_of_updates = False

    def begin(self, event: Hook) -> Awaitable[None] | None:
        """Run a hook in all addons that have it; return an awaitable for the rest, or None."""
        handlers = self._handlers_of(event)
        return self._run(handlers, 0, args_of(event)) if handlers else None

    def begin_lifecycle(self, event: Hook, args: Sequence[Any]) -> Awaitable[None] | None:
        """The same for a lifecycle hook; addons with an update hook are called too."""
        if handlers := self._handlers_of(event):
            rest = self._run(handlers, 0, args)
            if rest is not None:
                return self._update_after(rest, args[0])
        if self._tells_of_updates and isinstance(args[0], Flow):
            return self.begin(UpdateHook([args[0]]))
        return None

    def trigger(self, event: Hook) -> None:
        if isinstance(event, AddLogHook):  # mitmproxy triggers it for each line of the log
            if self._handlers_of(event):
                super().trigger(event)
            return
        super().trigger(event)
        self.forget()  # a configured addon may have other hooks now

    async def trigger_event(self, event: Hook) -> None:
        if rest := self.begin(event):
            await rest

    async def handle_lifecycle(self, event: Hook) -> None:
        if rest := self.begin_lifecycle(event, args_of(event)):
            await rest

    async def _update_after(self, rest: Awaitable[None], changed: object) -> None:
        await rest
        if isinstance(changed, Flow):
            await self.trigger_event(UpdateHook([changed]))

    def _run(
        self, handlers: Sequence[Handler], number: int, args: Sequence[Any]
    ) -> Awaitable[None] | None:
        """Run the handlers from this number on."""
        while number < len(handlers):
            handler = handlers[number]
            number += 1
            try:
                result = handler.function(*args)
            except AddonHalt:
                return None
            except Exception:
                _log_as_ever()
                number = handler.next_group
            else:
                if result is not None and isawaitable(result):
                    return self._wait_and_run(result, handlers, number, args)
        return None

    async def _wait_and_run(
        self,
        result: Awaitable[object],
        handlers: Sequence[Handler],
        number: int,
        args: Sequence[Any],
    ) -> None:
        try:
            await result
        except AddonHalt:
            return
        except Exception:
            _log_as_ever()
            number = handlers[number - 1].next_group
        if rest := self._run(handlers, number, args):
            await rest

    def _handlers_of(self, event: Hook) -> Sequence[Handler]:
        # Not ==: two addons may be equal.
        known, chain = self._chain, self.chain
        is_same = len(known) == len(chain) and all(map(is_, known, chain))
        if not is_same or (self._groups and self._have_groups_changed()):
            self._look_again()
        found = self._handlers.get(event.name)
        if found is None:
            found = self._handlers[event.name] = self._find(event)
        return found

    def _find(self, event: Hook) -> Sequence[Handler]:
        """Find the handlers of all addons; an error within a group stops us where it stops
        mitmproxy."""
        handlers: list[Handler] = []
        for addon in self.chain:
            functions = list(self._functions_of(addon, event))
            next_group = len(handlers) + len(functions)
            handlers += [Handler(function, next_group) for function in functions]
        return handlers

    def _functions_of(self, addon: object, event: Hook) -> Iterator[Callable[..., Any]]:
        found = self._iter_hooks(addon, event)
        while True:
            try:
                _, function = next(found)
            except StopIteration:
                return
            except Exception as problem:  # not a function, or a property that raises
                yield partial(_complain, problem)
                return
            yield function

    def _have_groups_changed(self) -> bool:
        members = list(traverse(self._groups))
        return len(members) != len(self._members) or not all(map(is_, members, self._members))

    def _look_again(self) -> None:
        self.forget()
        self._chain = list(self.chain)
        self._groups = [addon for addon in self.chain if hasattr(addon, "addons")]
        self._members = list(traverse(self._groups))
        self._tells_of_updates = bool(self._find(_UPDATE))


def _complain(problem: Exception, *_args: object) -> None:
    raise problem.with_traceback(None)


def _log_as_ever() -> None:
    """Log the current exception as mitmproxy does; re-raise those that it would not log."""
    with safecall():
        raise


def args_of(hook: Hook) -> list[Any]:
    """Return the arguments for addons, like ``hook.args()``, which looks up its fields each
    time."""
    kind = type(hook)
    names = _fields.get(kind)
    if names is None:
        found = fields(cast(Any, hook))  # each hook is a dataclass, and Hook itself is none
        names = _fields[kind] = [field.name for field in found]
    return [getattr(hook, name) for name in names]


def make_quick(manager: AddonManager) -> None:
    """Make a manager that is already in use quick."""
    if type(manager) is AddonManager:
        manager.__class__ = QuickAddonManager
        assert isinstance(manager, QuickAddonManager)
        manager.forget()
