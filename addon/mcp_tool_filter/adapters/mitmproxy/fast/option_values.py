"""mitmproxy's options, whose values are at hand.

A request reads some twenty of them, and mitmproxy copies each value for each reader, in case
somebody changes it. Here what cannot be changed is looked up once, until an option is edited.

Internals of mitmproxy that are used: that ``OptManager`` looks a value up in ``__getattr__``, and
that it sends ``changed`` after each change, also after one that it takes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakMethod

from mitmproxy.options import Options
from mitmproxy.optmanager import unset

_UNCHANGEABLE = frozenset({bool, int, str, type(None)})


def make_values_quick(options: object) -> None:
    """Let options that are in use be read quickly from now on."""
    if type(options) is Options:
        object.__setattr__(options, "__class__", QuickOptions)  # their own sets options
        assert isinstance(options, QuickOptions)
        # Before all who ask for the new values when they hear of a change.
        options.changed.receivers.insert(0, WeakMethod(options.forget))


class QuickOptions(Options):
    """Keeps the values that have been read among its own attributes."""

    def forget(self, updated: Iterable[str] = ()) -> None:
        """Look all values up anew: an edit that is refused takes others, made within it, back."""
        for name in self._options:
            self.__dict__.pop(name, None)

    def update_known(self, **kwargs: Any) -> dict[str, Any]:
        try:
            return super().update_known(**kwargs)  # type: ignore[no-any-return, no-untyped-call]  # mitmproxy's, untyped
        finally:
            self.forget()  # a value of a wrong type ends it without a word to anyone

    def __getattr__(self, name: str) -> Any:
        option = self.__dict__["_options"].get(name)
        if option is None:
            raise AttributeError(f"No such option: {name}")
        value = option._default if option.value is unset else option.value
        if type(value) not in _UNCHANGEABLE:
            return option.current()
        self.__dict__[name] = value
        return value
