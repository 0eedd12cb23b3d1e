"""Cache the values of mitmproxy's options.

A request reads about twenty options, and mitmproxy copies each value for each reader, in case the
reader changes it. Here we look up immutable values once, until an option is edited.

We use these internals of mitmproxy: ``OptManager`` looks up values in ``__getattr__``, and sends
``changed`` after each change, even after one that it reverts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakMethod

from mitmproxy.options import Options
from mitmproxy.optmanager import unset

_UNCHANGEABLE = frozenset({bool, int, str, type(None)})


def make_values_quick(options: object) -> None:
    """Make options that are already in use quick to read."""
    if type(options) is Options:
        object.__setattr__(options, "__class__", QuickOptions)  # theirs sets options
        assert isinstance(options, QuickOptions)
        # First, before all receivers that read the new values on a change.
        options.changed.receivers.insert(0, WeakMethod(options.forget))


class QuickOptions(Options):
    """Caches values as its own attributes."""

    def forget(self, updated: Iterable[str] = ()) -> None:
        """Drop all cached values: a refused edit also reverts other edits made within it."""
        for name in self._options:
            self.__dict__.pop(name, None)

    def update_known(self, **kwargs: Any) -> dict[str, Any]:
        try:
            return super().update_known(**kwargs)  # type: ignore[no-any-return, no-untyped-call]  # mitmproxy's, untyped
        finally:
            self.forget()  # a value of a wrong type raises without sending ``changed``

    def __getattr__(self, name: str) -> Any:
        option = self.__dict__["_options"].get(name)
        if option is None:
            raise AttributeError(f"No such option: {name}")
        value = option._default if option.value is unset else option.value
        if type(value) not in _UNCHANGEABLE:
            return option.current()
        self.__dict__[name] = value
        return value
