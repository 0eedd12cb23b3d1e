"""Which URIs are inside an allowed place."""

from __future__ import annotations

from contextlib import suppress

import pytest

from mcp_tool_filter.core.messages.sizes import URI
from mcp_tool_filter.rooms.catalog import uris
from mcp_tool_filter.rooms.catalog.uris import UnclearUri, is_inside, parse_entry, parse_uri
from tests.rows import each_row

INSIDE = [
    "file:///workspace", "file:///workspace/", "file:///workspace/a/b.txt",
    "FILE://LOCALHOST/workspace/a", "file:/workspace/a", "file:////workspace//a",
    "file:///workspace/./a/../b", "file:///x/../workspace/a", "file:///%77orkspace/a%20b",
    "file:///workspace/a?version=2#top", "file:///workspace?version=2", "file:\\\\\\workspace\\a",
    "file:///workspace/a%5Cb", "file:///workspace/a;v=1/b.c", "file:///workspace/a%3Fb%23c/d%252Fe",
]  # fmt: skip

OUTSIDE = [
    "file:///workspace-evil", "file:///workspace/../etc", "file:///workspace/%2e%2e/etc",
    "file:///workspace/%252e%252e/etc", "file:///workspace/..%2fetc", "file:///workspace/..%5cetc",
    "file:///workspace\\..\\etc", "file:///workspace/a?/../../../etc", "file:///Workspace/a",
    "file:///workspace/a%3F/../../../etc", "file:///workspace\\a", "file:///",
    "file:///workspace/a%5Cb/../../outside",  # a backslash as a letter
    "file:///workspace/a\\b/../../outside",
    "file:///workspace%2fx/../outside",  # dots before decoding
    "file:///workspace%2fx/%2E%2e/outside",  # only the dots decoded before
    "file:///workspace%5cx/../outside", "file:///workspace/x%252fy/../../outside",
    "file:///workspace/x%252fy/%252e%252e/%252e%252e/%252e%252e/outside",
    "file:///workspace/a%2fb%5c../../../outside",
    "file:///outside//../workspace/a",  # browsers' URLs count the empty part
    "file:///workspace/..;/outside", "file:///workspace/..%3fx", "other:///workspace/a",
    "file:///workspace/..%23/../outside", "https://localhost/workspace/a",
]  # fmt: skip

UNCLEAR = [
    "file:///workspace/.../etc", "file:///workspace/..%20/etc", "file:///workspace/.%20./etc", "",
    "/workspace/a", "workspace/a", "file:workspace/a", "file://evil.com/workspace/a",
    "file://%65vil/workspace", "file:///workspace/%00", "file:///workspace/\0",
    "file:///work\nspace/a", "file:///workspace/%0a", "file:///workspace/%ff",
    "file:///workspace/" + "%25" * 1 + "25252525252e",
    "1file:///workspace",
]  # fmt: skip


@each_row("uri", INSIDE)
def test_uris_inside_an_entry_are_inside(uri: str) -> None:
    assert is_inside(parse_uri(uri), parse_entry("/workspace"))


@each_row("uri", OUTSIDE)
def test_uris_outside_all_entries_are_outside(uri: str) -> None:
    assert not is_inside(parse_uri(uri), parse_entry("/workspace"))


@each_row("uri", UNCLEAR)
def test_uris_that_two_readers_resolve_differently_are_unclear(uri: str) -> None:
    with pytest.raises(UnclearUri):
        parse_uri(uri)


def test_another_scheme_is_inside_an_entry_of_that_scheme_and_host() -> None:
    entry = parse_entry("https://Host.example/docs")
    assert is_inside(parse_uri("HTTPS://host.EXAMPLE/docs/a"), entry)
    for uri in (
        "http://host.example/docs/a", "https://host.example:8443/docs/a",
        "https://evil@host.example/docs/a", "https://host.example.evil/docs/a",
        "https://evil.com\\@host.example/docs/a", "https://host.example/docs/../a",
    ):  # fmt: skip
        assert not is_inside(parse_uri(uri), entry)


@each_row(("glob", "inside", "outside"), [
    ("*.key", "/a.key /a.KEY/ /a.key?x=1 /a%2ekey /a.key. /a.key%20 /a.key::$DATA /a.key%3fx",
     "/keys /a.key.txt"),
    ("/secret/*", "/secret/a /secret./a /w%2fx/../secret/a", "/secret"),
    ("*/SECRET/*", "/w/secret/a", "/w/secret"), ("*/s\u00e9cret", "/w/se%CC%81cret", "/w/secret"),
    (".env", "/w/.env", "/w/env"), ("/w/secret", "/w/a%5Cb/../secret", "/secret"),
    ("/C:/*", "/C:/a", "/C/a"),
])  # fmt: skip
def test_entries_can_be_globs(glob: str, inside: str, outside: str) -> None:
    for path in f"{inside} {outside}".split():
        matches = uris.matches_glob(parse_uri(f"file://{path}"), glob)
        assert matches == (path in inside.split()), path
    assert not uris.matches_glob(parse_uri("https://h/a.key."), "*.key")


@pytest.mark.parametrize("entry", ["workspace", "", "file:x", "./a"])
def test_entries_without_a_place_are_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="begins with /"):
        parse_entry(entry)


WAYS = [
    ";%25252541/", "\\..\\x/", "?a/../b", "%2f..%2f", "/a%2f.;x", "%cc%81/", "#%255c", "//..//a;",
    "%5c..",
]  # fmt: skip


@pytest.mark.parametrize("filler", ["x", "\u00e9", "a/"])
@pytest.mark.parametrize("start", ["file:///", "skill://x/", "memo://a@", "xn--a://", "c:\\"])
def test_all_spellings_of_a_uri_share_one_budget(start: str, filler: str) -> None:
    """Each part that servers read in several ways multiplied the spellings of all others."""
    for count in range(1, len(WAYS) + 1):
        work = uris.Work()
        uri = f"{start}{filler * (3900 // len(filler))}{''.join(WAYS[:count])}"
        with suppress(UnclearUri):
            found = uris.spellings_of(uri, work)
            assert sum(map(len, found)) <= uris.FOR_A_URI - work.steps


def test_a_uri_with_too_many_readings_is_unclear() -> None:
    """No sender keeps us busy with them."""
    with pytest.raises(UnclearUri):
        parse_uri("file:///workspace" + "/%2f..%5c%252e" * 100_000)
    long = "file:///workspace/".ljust(URI, "a")
    assert is_inside(parse_uri(long), parse_entry("/workspace"))
    for read in (parse_uri, uris.spellings_of):
        with pytest.raises(UnclearUri, match="too long"):
            read(f"{long}a")


def test_a_host_is_spelled_as_written_and_in_lower_case() -> None:
    """Servers that take it for the name of a resource drop the user and the port before it."""
    found = uris.spellings_of("memo://u@Insights:80")
    assert {"memo://Insights", "memo://insights", "memo://u@Insights:80"} <= set(found)
    assert "memo://Insights" in uris.spellings_of("memo://@Insights")
