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


HEX = "0123456789abcdef"


@pytest.mark.parametrize("around", ["use %s now", '{"x":"%s"}', "a=%s&b", "https://h/%s"])
@pytest.mark.parametrize(
    "secret",
    [
        f"SK{HEX * 2}", "dckr_pat_AbCdEf0123456789abcdefGHIJK", f"PMAK-{HEX}{HEX[:8]}-{HEX * 2}ab",
        "glsa_AbCdEf0123456789AbCdEf0123456789_1a2b3c4d", f"pul-{HEX * 2}{HEX[:8]}",
        "NRAK-ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "sq0atp-AbCdEf0123456789abcdef", f"key-{HEX * 2}",
        "re_AbCd1234_AbCdEf0123456789abcdefGH", f"{HEX * 2}-us12",
        "nfp_AbCdEf0123456789abcdefGHIJK",
        "abcdefghij1234.atlasv1." + "x1" * 33, "acme_live_4f9aKd83hfkQ02mZp1",
        "foo-pat-a8S7d6f5g4h3j2k1l0", "bar_api_key_a8S7d6f5g4h3j2k1l0",
    ],
)  # fmt: skip
def test_makers_say_in_a_prefix_that_a_text_is_a_secret(secret: str, around: str) -> None:
    text = around.replace("%s", secret)
    assert secret in [text[start:end] for start, end in shapes_in(text)]


@pytest.mark.parametrize(
    "text",
    [
        "toolu_01A09q90qw90lq917835lq9", "chatcmpl-9aBc1234567890abcdef", "api-reference-version-2",
        "0f8fad5b-d9cb-469f-a165-70867728950e", "mcp-server-key-value-store",
        "live_2026_11_18_logs",
        "machine h login bob", "curl -u http://localhost", "oauth-2025-06-18",
    ],
)  # fmt: skip
def test_ids_and_names_have_no_secret_shape(text: str) -> None:
    assert list(shapes_in(text)) == []


def test_passwords_of_other_programs_are_found() -> None:
    text = "machine h login bob password two-words\ncurl -u bob:hunter x"
    assert [text[start:end] for start, end in shapes_in(text)] == ["two-words", "hunter"]
