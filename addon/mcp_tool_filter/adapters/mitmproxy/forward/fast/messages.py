"""Check the types of mitmproxy's messages without raising exceptions.

mitmproxy checks the types of each new message, and tries the members of ``bytes | None`` one after
the other. The member that does not fit raises an exception, which keeps its callers, and so the
flow and its bodies, in memory until garbage collection. The result here is the same. Only the types
of values matter: a combination that was right once is not checked again.

We use these internals of mitmproxy: messages check themselves in ``__post_init__``, how they do it,
and that a message has only its fields as attributes then, in order.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from mitmproxy.http import MessageData
from mitmproxy.utils.typecheck import check_option_type


def install_quick_checks() -> None:
    """Use this check for all messages of this process."""
    patched: Any = MessageData  # mypy does not allow assigning to methods
    patched.__post_init__ = check_types


_right: set[tuple[type, ...]] = set()
"""Known good combinations: the types of a message and of its values, in order."""
_MOST = 256


def check_types(message: MessageData) -> None:
    """Raise TypeError for a value that a message cannot have."""
    types = (type(message), *map(type, message.__dict__.values()))
    if types in _right:
        return
    for name, kind in _kinds(type(message)):
        value = getattr(message, name)
        if not isinstance(value, kind):
            check_option_type(name, value, kind)  # it accepts an int as a float
    if len(_right) < _MOST:
        _right.add(types)


@cache
def _kinds(of: type[MessageData]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in fields(of))
