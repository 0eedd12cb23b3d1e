"""Where tools/list is answered from.

(A separate module, so that checking settings imports little.)
"""

from __future__ import annotations

from enum import StrEnum


class ListFrom(StrEnum):
    """The values of the option ``tools_list``."""

    AUTO = "auto"
    CACHE = "cache"
    UPSTREAM = "upstream"
