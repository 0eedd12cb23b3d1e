"""What a client declares: clients choose how long that is."""

from __future__ import annotations

from mcp_tool_filter.conversation import capabilities
from mcp_tool_filter.conversation.capabilities import canonical


def test_long_capabilities_are_not_kept() -> None:
    """Each message may declare other ones, of megabytes."""
    before = capabilities._canonical.cache_info().currsize
    for number in range(10):
        assert len(canonical(f'{{"experimental":"{number}{"x" * 10_000}"}}')) == 64
    assert capabilities._canonical.cache_info().currsize == before
