"""All that a user can set, checked once at the door."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.options import KEYS
from mcp_tool_filter.cli.parsing import parse_config, parse_header
from mcp_tool_filter.core.errors import (
    BlankPattern,
    EmptyList,
    InvalidGlob,
    InvalidOption,
    NothingDenied,
    StartError,
)
from mcp_tool_filter.core.policy.config import Config, refuse_to_open
from tests.rows import each_row


def test_without_options_nothing_is_denied() -> None:
    assert parse_config() == Config()


def test_deny_can_be_repeated_and_hold_several_patterns() -> None:
    config = parse_config(deny=["^a,^b{1,2}$", "^c", "^a"])
    assert [pattern.text for pattern in config.choice.deny] == ["^a", "^b{1,2}$", "^c"]


@pytest.mark.parametrize("option", ["deny", "deny_glob", "allow"])
def test_an_empty_deny_or_allow_list_is_refused(option: str) -> None:
    with pytest.raises(EmptyList):
        parse_config({option: []})
    with pytest.raises(BlankPattern):
        parse_config({option: ["^a, "]})


def test_an_edit_may_not_remove_the_last_pattern() -> None:
    denying, allowing = parse_config(deny=["^a"]), parse_config(allow=["^a"])
    both = parse_config(deny=["^b"], allow=["^a"])
    for old, new in ((denying, Config()), (allowing, Config()), (both, denying), (both, allowing)):
        with pytest.raises(EmptyList):
            refuse_to_open(old, new)
    refuse_to_open(denying, both)
    refuse_to_open(Config(), Config())


def test_globs_are_denied_too_and_the_whole_name_must_fit() -> None:
    [glob] = parse_config(deny_glob=["write_*"]).choice.deny
    assert glob.text == "write_*"
    assert [glob.matches(name) for name in ("write_file", "rewrite_file")] == [True, False]
    with pytest.raises(InvalidGlob):
        parse_config(deny_glob=["{a"])


def test_case_can_be_ignored_in_all_patterns() -> None:
    names = ("RM_rf", "Delete", "READ")
    for ignore, holds in (("true", True), ("false", False)):
        given = {"deny": ["^rm"], "deny_glob": ["del*"], "allow": ["^read"], "ignore_case": ignore}
        patterns = parse_config(given).choice.patterns
        assert [one.matches(name) for one, name in zip(patterns, names, strict=True)] == [holds] * 3


def test_strict_requires_a_pattern() -> None:
    with pytest.raises(NothingDenied):
        parse_config(strict="true")
    parse_config(strict="true", deny_glob=["rm*"])


@pytest.mark.parametrize(("option", "pattern", "said"), [
    ("deny", "*delete*", "Hint: That is a glob; use --deny-glob, or as a regex: delete"),
    ("allow", "(?i)x", "Hint: JavaScript has no (?i); use --ignore-case and: x"),
    ("deny", ".*a.*b.*c.*", "leave out .* at its ends: a.*b.*c"),
])  # fmt: skip
def test_a_wrong_pattern_gets_a_suggestion(option: str, pattern: str, said: str) -> None:
    with pytest.raises(StartError) as raised:
        parse_config({option: [pattern]})
    assert said in str(raised.value).splitlines()[2]


@pytest.mark.parametrize(
    ("text", "size"),
    [("10MB", 10 << 20), ("1 kb", 1024), ("2048", 2048), ("1GiB", 1 << 30), (" 5m ", 5 << 20)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    limits = parse_config(message_limit=text).limits
    assert (limits.message, limits.pending) == (size, 2 * size)


@each_row("options", [
    {"max_clients": "0"}, {"message_limit": "1023"}, {"message_limit": "-1MB"},
    {"message_limit": "1.5MB"}, {"connection_timeout": "0"}, {"connection_timeout": "1s"},
    {"tool_list_timeout": "1e3"}, {"endpoint": "//evil.example/mcp"}, {"endpoint": "/m cp"},
    {"endpoint": "/mcp\r\nx: y"}, {"fail_fast": ""}, {"upstream_headers": [": x"]},
    {"upstream_headers": ["Host: x"]}, {"upstream_headers": ["content-length: 1"]},
    {"upstream_headers": ["X: a\r\nY: b"]}, {"upstream_headers": ["X: \u00e9"]},
    {"upstream_headers": ["X: $NOT_SET"]},
])  # fmt: skip
def test_an_invalid_value_stops_the_start(options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        parse_config(options, environment={})


@each_row("key", sorted(KEYS.keys() - {"rules", "lock", "edits", "audit_log"}))
def test_every_declared_option_is_read_and_checked(key: str) -> None:
    nonsense = "\0 ([{"
    with pytest.raises(StartError, match="Invalid"):
        parse_config({key: [nonsense] if KEYS[key].many else nonsense}, environment={})


def test_every_option_ends_in_the_config() -> None:
    typed = {
        "login_through": ("plain", "plain"), "endpoint": ("/mcp?a=1#x", "/mcp?a=1"),
        "upstream_headers": (["X-A: b: c"], (("X-A", "b: c"),)), "fail_fast": ("No", False),
        "connection_timeout": ("1500", 1.5), "tool_list_timeout": ("250", 0.25),
    }  # fmt: skip
    config = parse_config({key: text for key, (text, _) in typed.items()})
    assert {key: getattr(config, key) for key in typed} == {key: typed[key][1] for key in typed}
    hosts = parse_config(allowed_hosts=["Tools.Example, b:80,", "http://c/", ""]).allowed_hosts
    assert hosts.extra == {"tools.example", "b:80", "http://c"}


@pytest.mark.parametrize(("text", "value"), [
    ("A: Bearer $TOKEN", "Bearer s3cret"), ("A: ${TOKEN}x", "s3cretx"),
    ("A: $$TOKEN $$", "$TOKEN $"), ("A:  100% ", "100%"), ("A:", ""),
])  # fmt: skip
def test_a_header_may_name_variables(text: str, value: str) -> None:
    """So that a secret stands in no command line."""
    assert parse_header(text, {"TOKEN": "s3cret"}) == ("A", value)


@pytest.mark.parametrize("text", ["s3cret", "A: \ns3cret\x00", "A: $X s3cret", "Bad Name: s3cret"])
def test_errors_never_show_a_headers_value(text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_header(text, {})
    assert "s3cret" not in str(caught.value)
