"""Who asks: may they, whose list do they get, and what may their web page read?"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mcp_tool_filter.core.http import asker
from mcp_tool_filter.core.http.asker import CorsMemory, Page, is_like_the_fetch, problem_in_source
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.tool_requests import parse_list_request
from mcp_tool_filter.core.policy.config import AllowedHosts
from tests.core.http.listening import INITIALIZE, answer, ask, asked
from tests.make import answering, asking, definition, head, listing_of, raw_head, request
from tests.rows import each_row

OURS = AllowedHosts(frozenset({"https://tools.example"}))


def problem(
    allowed: AllowedHosts, host: str | None, origins: Sequence[str], sites: Sequence[str]
) -> str | None:
    fields = [("Host", host)] if host else []
    fields += [("Origin", one) for one in origins] + [("Sec-Fetch-Site", one) for one in sites]
    return problem_in_source(allowed, raw_head("POST", "/mcp", *fields))


@pytest.fixture
def memory() -> CorsMemory:
    return CorsMemory()


@each_row(("host", "origins", "sites", "found"), [
    ("localhost", [], [], None),
    ("localhost", [], ["None"], None),
    ("localhost", [], ["same-origin", "none"], None),
    ("localhost", [], ["same-origin", "cross-site"], "Sec-Fetch-Site"),
    ("localhost", [], [""], "Sec-Fetch-Site"),
    ("127.0.0.1:1", ["https://tools.example"], ["cross-site"], None),
    ("localhost", ["https://tools.example", "http://evil.example"], ["none"], "Origin"),
    (None, [], ["none"], "Host"), ("evil.example", [], [], "Host"),
])  # fmt: skip
def test_a_page_of_another_site_is_known_by_what_the_browser_says(
    host: str | None, origins: list[str], sites: list[str], found: str | None
) -> None:
    assert problem(OURS, host, origins, sites) == found


def test_a_request_that_names_two_hosts_is_refused() -> None:
    twice = raw_head("POST", "/mcp", ("Host", "localhost"), ("host", "127.0.0.1"))
    assert problem_in_source(OURS, twice) == "Host"
    assert problem_in_source(OURS, head(host="localhost"), authority="127.0.0.1") == "Host"
    assert problem_in_source(OURS, head(host="localhost"), authority="LOCALHOST") is None


def test_a_star_switches_all_checks_off() -> None:
    anyone = AllowedHosts(frozenset({"*"}))
    assert problem(anyone, "x", ["null"], ["cross-site"]) is None
    assert problem(anyone, "x", [], ["cross-site"]) is None


# What makes no difference to an upstream


ORIGIN = "http://localhost:6274"


@each_row("headers", [
    {},
    {"accept": "x", "content_type": "x", "content_length": "1", "host": "h", "user_agent": "u"},
    {"mcp_session_id": "1", "mcp_protocol_version": "x", "mcp_method": "x", "mcp_name": "x"},
    {"accept_language": "*", "sec_fetch_mode": "cors", "accept_encoding": "br, gzip"},
    {"traceparent": "00-1-1-01", "tracestate": "a=b"},
    {"connection": "keep-alive", "transfer_encoding": "chunked", "te": "trailers"},
])  # fmt: skip
def test_headers_that_every_client_sends_do_not_identify_a_user(headers: dict[str, str]) -> None:
    assert is_like_the_fetch(head(**headers))


@each_row("name", [
    "authorization", "proxy-authorization", "cookie", "x-api-key", "cf-access-jwt-assertion",
    "x-forwarded-user", "x-tenant", "x-anything", "x_real_ip", "forwarded", "via", "from",
    "baggage", "accept-language", "origin", "referer", "mcp-session", "mcp-param-a", "dpop",
    "x-amz-security-token", "tailscale-user-login", "remote-user", "if-none-match", "range",
])  # fmt: skip
def test_any_other_header_may_identify_a_user(name: str) -> None:
    for spelling in (name, name.upper()):
        assert not is_like_the_fetch(raw_head("POST", "/mcp", ("accept", "x"), (spelling, "x")))


def test_a_page_whose_origin_was_answered_is_no_other_user() -> None:
    page = head(origin=ORIGIN, referer=f"{ORIGIN}/", sec_fetch_site="cross-site")
    assert is_like_the_fetch(page, known_origin=True)
    assert not is_like_the_fetch(page)
    longer = head(origin=ORIGIN, referer=f"{ORIGIN}/tenants/1")
    assert not is_like_the_fetch(longer, known_origin=True)


@each_row(("params", "is_usual"), [
    ("{}", True), ('{"_meta":{}}', True),
    ('{"_meta":{"progressToken":1}}', True),
    ('{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"x"}}}', True),
    ('{"_meta":{"com.example/user":"ann"}}', False),
    ('{"_meta":[]}', False), ('{"_meta":"ann"}', False), ('{"user":"ann"}', False),
])  # fmt: skip
def test_further_params_may_identify_a_user(params: str, is_usual: bool) -> None:
    asked = parse_list_request(request(asking("tools/list", params=params)))
    assert asked.is_usual is is_usual


@each_row("name", [
    "authorization", "cookie", "x-api-key", "apikey", "x-access-key", "cf-access-jwt-assertion",
])  # fmt: skip
def test_credentials_differ_by_every_header_that_holds_one(name: str) -> None:
    one, other = (raw_head("POST", "/mcp", (name.title(), value)) for value in "ab")
    assert asker.credentials_in(one) != asker.credentials_in(other)
    assert asker.credentials_in(raw_head("POST", "/mcp", ("X-User", "a"))) == b""


@each_row(("one", "other", "is_same"), [
    (("/mcp",), ("/mcp",), True),
    (("/mcp?token=a",), ("/mcp?token=b",), False),
    (("/mcp",), ("/other/mcp",), False),
    (("/mcp", ("X-Forwarded-User", "a")), ("/mcp", ("X-Forwarded-User", "b")), False),
    (("/mcp", ("X-Tenant", "a")), ("/mcp",), False),
    (("/mcp", ("Accept-Language", "de")), ("/mcp", ("Accept-Language", "fr")), False),
    (("/mcp", ("X-Request-Id", "1")), ("/mcp", ("X-Request-Id", "2")), True),
    (("/mcp", ("X-Forwarded-For", "1.1.1.1")), ("/mcp",), True),
    (("/mcp", ("Mcp-Param-Region", "eu")), ("/mcp", ("Mcp-Param-Region", "us")), True),
    (("/mcp", ("Mcp-Session-Id", "1")), ("/mcp", ("Mcp-Session-Id", "2")), True),
])  # fmt: skip
def test_the_same_asker_may_share_an_answer(one: Any, other: Any, is_same: bool) -> None:
    first, second = (asker.asker_in(raw_head("POST", *said)) for said in (one, other))
    assert (first == second) is is_same


# What the upstream lets pages read


PAGE = Page(ORIGIN, "/mcp")
ALLOWED = (b"access-control-allow-origin", ORIGIN.encode())
STAR = (b"access-control-allow-origin", b"*")
CREDENTIALS = (b"access-control-allow-credentials", b"true")
EXPOSE = (b"access-control-expose-headers", b"Mcp-Session-Id")
METHODS = (b"access-control-allow-methods", b"GET, POST")


def test_our_answers_have_the_upstreams_cors_headers(memory: CorsMemory) -> None:
    """A page's first request may be one that we answer: then those of the preflight."""
    for status, said, is_preflight, ours in [
        (204, [ALLOWED, CREDENTIALS, METHODS], True, (ALLOWED, CREDENTIALS)),
        (200, [ALLOWED, EXPOSE, (b"Server", b"x")], False, (ALLOWED, EXPOSE)),
        (204, [ALLOWED, CREDENTIALS], True, (ALLOWED, EXPOSE)),
        (500, [], False, (ALLOWED, EXPOSE)),
        (200, [STAR], False, (STAR,)),
        (404, [], False, ()),
    ]:
        memory.learn(PAGE, status, said, is_preflight=is_preflight)
        assert memory.headers_for(PAGE) == ours
        assert memory.is_allowed(PAGE) is bool(ours)


@pytest.mark.parametrize("other", [
    Page("http://localhost:6275", "/mcp"), Page("https://localhost:6274", "/mcp"),
    Page(ORIGIN, "/token"), Page(ORIGIN, "/mcp", has_cookie=True),
])  # fmt: skip
def test_other_pages_and_paths_get_no_cors_headers(memory: CorsMemory, other: Page) -> None:
    memory.learn(PAGE, 200, [ALLOWED])
    assert memory.headers_for(other) == ()


@pytest.mark.parametrize(("vary", "says_so"), [
    (b"Origin", True), (b"Accept, origin", True), (b"*", True), (b"Accept", False), (b"", False),
])  # fmt: skip
def test_vary_is_sent_as_the_upstream_does(memory: CorsMemory, vary: bytes, says_so: bool) -> None:
    memory.learn(PAGE, 200, [ALLOWED, (b"Vary", vary)])
    assert ((b"vary", b"Origin") in memory.headers_for(PAGE)) is says_so


def test_the_memory_is_bounded(memory: CorsMemory) -> None:
    for number in range(1000):
        memory.learn(Page(f"http://localhost:{number}", "/"), 200, [STAR])
        memory.learn(Page(f"http://localhost:{number}", "/no"), 200, [])
    assert len(memory) == 256
    memory.learn(PAGE, 200, [(EXPOSE[0], b"x" * 100_000)])
    assert memory.headers_for(PAGE) == ()


def test_the_least_recently_used_page_is_forgotten_first(memory: CorsMemory) -> None:
    memory.learn(PAGE, 200, [STAR])
    for number in range(1000):
        memory.learn(Page(f"http://localhost:{number}", "/"), 200, [STAR])
        assert memory.is_allowed(PAGE)


def test_a_page_is_identified_by_its_path() -> None:
    def page_from(**headers: str) -> Page | None:
        return asker.page_of(head("POST", "/mcp/?a=1", **headers))

    assert page_from(origin=ORIGIN) == PAGE
    assert page_from() is None
    assert page_from(origin=ORIGIN, cookie="a=b") == Page(ORIGIN, "/mcp", has_cookie=True)
    assert page_from(origin="http://" + "x" * 5000) is None


# Ten thousand askers of a filter that remembers a thousand take little more memory than two


REVISION = "2025-11-25"
MANY = int(os.environ.get("FILTER_TESTS_ASKERS", "1000"))
FEW = MANY // 5
REMEMBERED = MANY // 10
LIST_SIZE = 4_000
MOST_EACH = 1_000  # bytes: what is known of a session, but not its list
HELLO = answering(f'{{"protocolVersion":"{REVISION}","capabilities":{{}}}}', id="0")


def list_of(number: int) -> bytes:
    """Write the list of one user."""
    return listing_of(definition(f"of_{number}", ',"description":"' + "x" * LIST_SIZE + '"'))


def list_with_token(door: Listener, number: int) -> None:
    """Ask for the list without a session, with a token of one's own; get tools of one's own."""
    headers = {"authorization": f"Bearer {number}", "mcp_protocol_version": REVISION}
    answer(door, ask(asking("tools/list"), door, **headers), list_of(number))


def list_in_session(door: Listener, number: int) -> None:
    """Do the same in a session."""
    token, id = f"Bearer {number}", f"session-{number}"
    hello = asked(INITIALIZE, door, authorization=token)
    door.note_answer_head(hello, 200, id)
    answer(door, hello, HELLO)
    listing = ask(asking("tools/list"), door, authorization=token, mcp_session_id=id)
    answer(door, listing, list_of(number))


@pytest.mark.parametrize("visit", [list_with_token, list_in_session])
def test_memory_stays_flat_with_many_askers(
    door: Listener, visit: Callable[[Listener, int], None]
) -> None:
    door.policy.adopt(replace(door.config, limits=Limits(sessions=REMEMBERED)))
    tracemalloc.start()
    try:
        sizes: list[int] = []
        for number in range(MANY):
            visit(door, number)
            if number + 1 in (FEW, MANY):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    few, many = sizes
    assert few > REMEMBERED * LIST_SIZE  # lists are kept, at first
    assert many - few < (MANY - FEW) * MOST_EACH, sizes
