"""The class of a message: passed, logged, or reviewed.

>>> [class_of(name).value for name in ("ping", "tools/list", "tools/call", "vendor.acme/custom")]
['pass', 'log', 'review', 'log']
"""

from __future__ import annotations

from enum import StrEnum


class Class(StrEnum):
    PASS = "pass"
    """Not in the audit log."""
    LOG = "log"
    REVIEW = "review"
    """A policy decides on it."""


_PASS = frozenset({"initialize", "initialized", "ping", "server/discover"})
_REVIEW = frozenset({"tools/call", "resources/read", "sampling/createMessage"})


def class_of(method: str) -> Class:
    """Return the class of a request or a notification; a response belongs to its request."""
    if method in _REVIEW:
        return Class.REVIEW
    if method in _PASS or method.startswith("notifications/"):
        return Class.PASS
    return Class.LOG
