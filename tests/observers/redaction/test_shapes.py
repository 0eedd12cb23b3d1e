"""Secrets that are known by what they look like."""

from __future__ import annotations

import pytest

from mcp_tool_filter.observers.redaction.shapes import basic_parts, shapes_in


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("a glpat-0123456789abcdefXYZ b", "glpat-0123456789abcdefXYZ"),
        ("AKIAABCDEFGHIJKLMNOP.", "AKIAABCDEFGHIJKLMNOP"),
        ("Bearer abc123def", "abc123def"),
        ("basic Ym9iOmh1bnRlcjI=", "Ym9iOmh1bnRlcjI="),
        ("https://hooks.slack.com/services/T0/B0/abcdefghij", "T0/B0/abcdefghij"),
        ("-----BEGIN PRIVATE KEY-----\nMIIabc", "MIIabc"),
    ],
)
def test_a_secret_shape_is_found_without_a_name(text: str, secret: str) -> None:
    assert secret in [text[start:end] for start, end in shapes_in(text)]


@pytest.mark.parametrize(
    "text", ["sk-learn-is-a-library", "Bearer tokens", "basic English", "AKIA"]
)
def test_ordinary_words_have_no_secret_shape(text: str) -> None:
    assert list(shapes_in(text)) == []


def test_only_basic_credentials_have_a_user() -> None:
    assert basic_parts("!!") == basic_parts("Ym9i") == []
