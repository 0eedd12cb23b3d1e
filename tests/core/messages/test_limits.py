from __future__ import annotations

import pytest

from mcp_tool_filter.core.messages.limits import KNOWN_REVISIONS, has_initialize


def test_of_the_known_revisions_only_the_last_has_no_initialize() -> None:
    assert list(KNOWN_REVISIONS) == sorted(KNOWN_REVISIONS)
    assert [each for each in KNOWN_REVISIONS if not has_initialize(each)] == ["2026-07-28"]


@pytest.mark.parametrize("revision", ["", "2025-04-01", "2031-01-01", "DRAFT-2025-v2"])
def test_an_unknown_revision_has_no_initialize(revision: str) -> None:
    assert not has_initialize(revision)
