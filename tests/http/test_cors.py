"""What the upstream lets pages read."""

from __future__ import annotations

import pytest

from mcp_tool_filter.http.asker import CorsMemory, Page, page_of
from mcp_tool_filter.http.head import Head

PAGE = Page("http://localhost:6274", "/mcp")
ORIGIN = (b"access-control-allow-origin", b"http://localhost:6274")
STAR = (b"access-control-allow-origin", b"*")
CREDENTIALS = (b"access-control-allow-credentials", b"true")
EXPOSE = (b"access-control-expose-headers", b"Mcp-Session-Id")
METHODS = (b"access-control-allow-methods", b"GET, POST")


def test_an_answer_has_the_cors_headers_of_the_last_one() -> None:
    memory = CorsMemory()
    memory.learn(PAGE, 200, [ORIGIN, CREDENTIALS, EXPOSE, (b"Server", b"x")])
    assert memory.headers_for(PAGE) == (ORIGIN, CREDENTIALS, EXPOSE)
    memory.learn(PAGE, 200, [STAR])
    assert memory.headers_for(PAGE) == (STAR,)


def test_a_star_is_not_combined_with_credentials_of_another_answer() -> None:
    memory = CorsMemory()
    memory.learn(PAGE, 204, [ORIGIN, CREDENTIALS, METHODS], is_preflight=True)
    memory.learn(PAGE, 200, [STAR])
    assert memory.headers_for(PAGE) == (STAR,)


def test_a_preflight_alone_is_enough() -> None:
    """A page's first request may be one that we answer."""
    memory = CorsMemory()
    memory.learn(PAGE, 204, [ORIGIN, CREDENTIALS, METHODS], is_preflight=True)
    assert memory.headers_for(PAGE) == (ORIGIN, CREDENTIALS)


def test_an_answer_counts_more_than_a_preflight() -> None:
    memory = CorsMemory()
    memory.learn(PAGE, 200, [ORIGIN, EXPOSE])
    memory.learn(PAGE, 204, [ORIGIN, CREDENTIALS], is_preflight=True)
    assert memory.headers_for(PAGE) == (ORIGIN, EXPOSE)


@pytest.mark.parametrize("status", [200, 202, 400, 401, 403, 404])
def test_permissions_that_the_upstream_withdraws_end(status: int) -> None:
    memory = CorsMemory()
    memory.learn(PAGE, 204, [ORIGIN], is_preflight=True)
    memory.learn(PAGE, status, [])
    assert memory.headers_for(PAGE) == ()
    assert not memory.is_allowed(PAGE)


def test_an_error_page_without_cors_changes_nothing() -> None:
    memory = CorsMemory()
    memory.learn(PAGE, 200, [ORIGIN])
    memory.learn(PAGE, 500, [])
    assert memory.headers_for(PAGE) == (ORIGIN,)


@pytest.mark.parametrize(
    "other",
    [
        Page("http://localhost:6275", "/mcp"),
        Page("https://localhost:6274", "/mcp"),
        Page("http://localhost:6274", "/token"),
        Page("http://localhost:6274", "/mcp", has_cookie=True),
    ],
)
def test_other_pages_and_paths_get_no_cors_headers(other: Page) -> None:
    memory = CorsMemory()
    memory.learn(PAGE, 200, [ORIGIN])
    assert memory.headers_for(other) == ()


@pytest.mark.parametrize(
    ("vary", "says_so"),
    [(b"Origin", True), (b"Accept, origin", True), (b"*", True), (b"Accept", False), (b"", False)],
)
def test_vary_is_sent_where_the_upstream_sends_it(vary: bytes, says_so: bool) -> None:
    memory = CorsMemory()
    memory.learn(PAGE, 200, [ORIGIN, (b"Vary", vary)])
    assert ((b"vary", b"Origin") in memory.headers_for(PAGE)) is says_so


def test_the_memory_is_bounded() -> None:
    memory = CorsMemory()
    for number in range(1000):
        memory.learn(Page(f"http://localhost:{number}", "/"), 200, [STAR])
        memory.learn(Page(f"http://localhost:{number}", "/no"), 200, [])
    assert len(memory) == 256
    memory.learn(PAGE, 200, [(EXPOSE[0], b"x" * 100_000)])
    assert memory.headers_for(PAGE) == ()


def test_the_least_recently_used_page_is_forgotten_first() -> None:
    memory = CorsMemory()
    memory.learn(PAGE, 200, [STAR])
    for number in range(1000):
        memory.learn(Page(f"http://localhost:{number}", "/"), 200, [STAR])
        assert memory.is_allowed(PAGE)


def test_a_page_is_identified_by_its_path() -> None:
    def page_from(*fields: tuple[bytes, bytes]) -> Page | None:
        return page_of(Head("POST", "/mcp/?a=1", fields))

    assert page_from((b"Origin", PAGE.origin.encode())) == PAGE
    assert page_from() is None
    with_cookie = page_from((b"Origin", PAGE.origin.encode()), (b"Cookie", b"a=b"))
    assert with_cookie == Page(PAGE.origin, PAGE.path, has_cookie=True)
    assert page_from((b"Origin", b"http://" + b"x" * 5000)) is None
