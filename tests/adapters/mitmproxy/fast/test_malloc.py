"""Memory for large bodies: kept, or given back, where the C library can do so."""

from __future__ import annotations

import ctypes

import pytest

from mcp_tool_filter.adapters.mitmproxy.fast import malloc as room


def test_room_is_kept_and_given_back() -> None:
    room.keep_room()
    room.give_back()


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_another_c_library_is_left_alone(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_name: str | None) -> ctypes.CDLL:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", load)
    room._glibc.cache_clear()
    room.keep_room()
    room.give_back()
    room._glibc.cache_clear()
