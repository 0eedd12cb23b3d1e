from __future__ import annotations

import pytest

from mcp_tool_filter.protocol.revisions import (
    KNOWN_REVISIONS,
    has_batches,
    has_initialize,
    has_method_headers,
    has_result_type,
    has_sessions,
    has_version_header,
    is_known,
)


def known(*revisions: str) -> list[bool]:
    return [revision in revisions for revision in KNOWN_REVISIONS]


def test_the_known_revisions_are_in_order() -> None:
    assert list(KNOWN_REVISIONS) == sorted(KNOWN_REVISIONS)
    assert all(is_known(revision) for revision in KNOWN_REVISIONS)


def test_revisions_differ_in_known_ways() -> None:
    modern = known("2026-07-28")
    assert [has_initialize(each) for each in KNOWN_REVISIONS] == [not is_it for is_it in modern]
    assert [has_method_headers(each) for each in KNOWN_REVISIONS] == modern
    assert [has_result_type(each) for each in KNOWN_REVISIONS] == modern
    assert [has_batches(each) for each in KNOWN_REVISIONS] == known("2025-03-26")
    assert [has_sessions(each) for each in KNOWN_REVISIONS] == known(
        "2025-03-26", "2025-06-18", "2025-11-25"
    )
    assert [has_version_header(each) for each in KNOWN_REVISIONS] == known(
        "2025-06-18", "2025-11-25", "2026-07-28"
    )


@pytest.mark.parametrize("revision", ["", "2025-04-01", "2031-01-01", "DRAFT-2025-v2"])
def test_an_unknown_revision_has_no_properties(revision: str) -> None:
    assert not is_known(revision)
    assert not has_initialize(revision)
    assert not has_sessions(revision)
    assert not has_version_header(revision)
