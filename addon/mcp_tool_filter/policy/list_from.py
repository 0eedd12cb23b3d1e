"""Where tools/list is answered from. A module of its own: to check settings needs no more."""

from __future__ import annotations

from enum import StrEnum


class ListFrom(StrEnum):
    """As the option ``tools_list`` says."""

    AUTO = "auto"
    CACHE = "cache"
    UPSTREAM = "upstream"
