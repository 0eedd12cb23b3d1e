"""Which requests are accepted by their Host, Origin and fetch metadata."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mcp_tool_filter.http.asker import problem_in_source
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.policy.config import AllowedHosts

OURS = AllowedHosts(frozenset({"https://tools.example"}))


def problem(
    allowed: AllowedHosts,
    *,
    host: str | None,
    origins: Sequence[str] = (),
    sites: Sequence[str] = (),
) -> str | None:
    fields = [("Host", host)] if host else []
    fields += [("Origin", one) for one in origins] + [("Sec-Fetch-Site", one) for one in sites]
    head = Head("POST", "/mcp", tuple((name.encode(), value.encode()) for name, value in fields))
    return problem_in_source(allowed, head)


@pytest.mark.parametrize(
    "site",
    ["cross-site", "same-site", "Cross-Site", " cross-site ", "", "x", "none, cross-site"],
)
def test_cross_site_requests_without_an_origin_are_refused(site: str) -> None:
    """An ``<img>`` sends no Origin. What a browser may send later is refused, too."""
    assert problem(OURS, host="localhost", sites=[site]) == "Sec-Fetch-Site"


def test_one_same_origin_value_does_not_outweigh_a_cross_site_one() -> None:
    sites = ["same-origin", "cross-site"]
    assert problem(OURS, host="localhost", sites=sites) == "Sec-Fetch-Site"


@pytest.mark.parametrize("site", ["same-origin", "none", "None"])
def test_same_origin_and_typed_requests_are_accepted(site: str) -> None:
    assert problem(OURS, host="localhost", sites=[site]) is None


@pytest.mark.parametrize("origin", ["http://localhost:6274", "https://tools.example"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin"])
def test_an_allowed_origin_may_ask_from_any_site(origin: str, site: str) -> None:
    """A page at localhost is cross-site to 127.0.0.1, and same-site to another port."""
    assert problem(OURS, host="127.0.0.1:1", origins=[origin], sites=[site]) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
def test_an_unknown_origin_is_refused_from_any_site(site: str) -> None:
    origins = ["http://evil.example"]
    found = problem(OURS, host="localhost", origins=origins, sites=[site])
    assert found == "Origin"


@pytest.mark.parametrize("host", [None, "evil.example"])
def test_an_unknown_host_is_refused_from_any_site(host: str | None) -> None:
    assert problem(OURS, host=host, sites=["none"]) == "Host"


def test_a_request_that_names_two_hosts_is_refused() -> None:
    head = Head("POST", "/mcp", ((b"Host", b"localhost"), (b"host", b"127.0.0.1")))
    assert problem_in_source(OURS, head) == "Host"
    head = Head("POST", "/mcp", ((b"Host", b"localhost"),))
    assert problem_in_source(OURS, head, authority="127.0.0.1") == "Host"
    assert problem_in_source(OURS, head, authority="LOCALHOST") is None


def test_requests_without_fetch_metadata_are_accepted() -> None:
    assert problem(OURS, host="localhost") is None


def test_a_star_switches_all_checks_off() -> None:
    anyone = AllowedHosts(frozenset({"*"}))
    assert problem(anyone, host="x", origins=["null"], sites=["cross-site"]) is None
    assert problem(anyone, host="x", sites=["cross-site"]) is None
