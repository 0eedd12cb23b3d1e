from __future__ import annotations

import pytest

from mcp_tool_filter.protocol.limits import KNOWN_REVISIONS, has_initialize


def test_the_known_revisions_are_in_order() -> None:
    assert list(KNOWN_REVISIONS) == sorted(KNOWN_REVISIONS)


def test_only_stateless_revisions_have_no_initialize() -> None:
    without = [each for each in KNOWN_REVISIONS if not has_initialize(each)]
    assert without == ["2026-07-28"]


@pytest.mark.parametrize("revision", ["", "2025-04-01", "2031-01-01", "DRAFT-2025-v2"])
def test_an_unknown_revision_has_no_initialize(revision: str) -> None:
    assert not has_initialize(revision)
