"""The picture and the docs say what the last published run has measured."""

from __future__ import annotations

import json

import pytest

from tests.bench.published import JSON, PAGE, PICTURE, figures, page_with, picture
from tests.bench.ways import ENVOY_MCP, LAUNCHER, PUMP


def test_the_picture_and_the_page_are_those_of_the_run() -> None:
    """Else: python -m tests.bench.published"""
    said = json.loads(JSON.read_text())
    assert PICTURE.read_text() == picture(said)
    assert PAGE.read_text() == page_with(PAGE.read_text(), said)


def test_the_run_has_measured_what_we_compare_with() -> None:
    said = json.loads(JSON.read_text())
    row = said["calls"]["call, 1 KB, 16 clients"]
    assert {LAUNCHER, ENVOY_MCP, PUMP} <= row.keys()


def test_what_has_failed_is_left_out() -> None:
    said = json.loads(JSON.read_text())
    for row in said["calls"].values():
        row[LAUNCHER] = "refused"
    assert not any(line.startswith("| **`mcp-tool-filter`**") for line in figures(said))
    assert "#1f5fa8" not in picture(said)


def test_a_page_without_a_place_for_the_figures_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"limits\.md"):
        page_with("# Limits\n", json.loads(JSON.read_text()))
