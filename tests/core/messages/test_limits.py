from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import mcp_tool_filter
from mcp_tool_filter.core.messages.limits import KNOWN_REVISIONS, has_initialize

PACKAGE = Path(mcp_tool_filter.__file__).parent


def test_of_the_known_revisions_only_the_last_has_no_initialize() -> None:
    assert list(KNOWN_REVISIONS) == sorted(KNOWN_REVISIONS)
    assert [each for each in KNOWN_REVISIONS if not has_initialize(each)] == ["2026-07-28"]


@pytest.mark.parametrize("revision", ["", "2025-04-01", "2031-01-01", "DRAFT-2025-v2"])
def test_an_unknown_revision_has_no_initialize(revision: str) -> None:
    assert not has_initialize(revision)


def test_no_revision_is_named_outside_the_table() -> None:
    """A new revision is one line there."""
    names = re.compile("|".join(map(re.escape, KNOWN_REVISIONS)) + r"|\bR20\d\d_\d\d_\d\d\b")
    naming = [
        str(file)
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Name | ast.Constant)
        and names.fullmatch(str(node.id if isinstance(node, ast.Name) else node.value))
    ]
    assert {Path(one).name for one in naming} == {"limits.py", "selftest.py"}, naming
