"""mitmproxy's requests and responses, checked without stumbling.

mitmproxy checks the types of each message that is made, and tries one half of ``bytes | None``
after the other. The half that does not fit is an exception that holds on to all its callers, and
so to the flow and its bodies, until the garbage collector comes. What is found here is the same.
Only the types of values matter: those that were found right once are not checked again.

Internals of mitmproxy that are used: that messages check themselves in ``__post_init__``, and how,
and that a message has no attributes yet but its fields, in their order.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from mitmproxy.http import MessageData
from mitmproxy.utils.typecheck import check_option_type


def install_quick_checks() -> None:
    """Check all messages of this process this way."""
    patched: Any = MessageData  # for mypy a method is not for assigning
    patched.__post_init__ = check_types


_right: set[tuple[type, ...]] = set()
"""The types of a message and of its values, in their order. There are few."""
_MOST = 256


def check_types(message: MessageData) -> None:
    """Raise TypeError for a value that a message cannot have."""
    types = (type(message), *map(type, message.__dict__.values()))
    if types in _right:
        return
    for name, kind in _kinds(type(message)):
        value = getattr(message, name)
        if not isinstance(value, kind):
            check_option_type(name, value, kind)  # to which an int is a float, too
    if len(_right) < _MOST:
        _right.add(types)


@cache
def _kinds(of: type[MessageData]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in fields(of))
