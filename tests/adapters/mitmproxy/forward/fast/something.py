"""A hook that only the tests of this folder know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mitmproxy.hooks import Hook


@dataclass
class SomethingHook(Hook):
    what: Any
