"""Which requests are accepted by their Host, Origin and fetch metadata."""

from __future__ import annotations

import pytest

from mcp_tool_filter.http.asker import problem_in_source
from mcp_tool_filter.policy.config import AllowedHosts

OURS = AllowedHosts(frozenset({"https://tools.example"}))


@pytest.mark.parametrize(
    "site",
    ["cross-site", "same-site", "Cross-Site", " cross-site ", "", "x", "none, cross-site"],
)
def test_cross_site_requests_without_an_origin_are_refused(site: str) -> None:
    """An ``<img>`` sends no Origin. What a browser may send later is refused, too."""
    assert problem_in_source(OURS, host="localhost", sites=[site]) == "Sec-Fetch-Site"


def test_one_same_origin_value_does_not_outweigh_a_cross_site_one() -> None:
    sites = ["same-origin", "cross-site"]
    assert problem_in_source(OURS, host="localhost", sites=sites) == "Sec-Fetch-Site"


@pytest.mark.parametrize("site", ["same-origin", "none", "None"])
def test_same_origin_and_typed_requests_are_accepted(site: str) -> None:
    assert problem_in_source(OURS, host="localhost", sites=[site]) is None


@pytest.mark.parametrize("origin", ["http://localhost:6274", "https://tools.example"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin"])
def test_an_allowed_origin_may_ask_from_any_site(origin: str, site: str) -> None:
    """A page at localhost is cross-site to 127.0.0.1, and same-site to another port."""
    assert problem_in_source(OURS, host="127.0.0.1:1", origins=[origin], sites=[site]) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
def test_an_unknown_origin_is_refused_from_any_site(site: str) -> None:
    origins = ["http://evil.example"]
    found = problem_in_source(OURS, host="localhost", origins=origins, sites=[site])
    assert found == "Origin"


@pytest.mark.parametrize("host", [None, "evil.example"])
def test_an_unknown_host_is_refused_from_any_site(host: str | None) -> None:
    assert problem_in_source(OURS, host=host, sites=["none"]) == "Host"


def test_requests_without_fetch_metadata_are_accepted() -> None:
    assert problem_in_source(OURS, host="localhost") is None


def test_a_star_switches_all_checks_off() -> None:
    anyone = AllowedHosts(frozenset({"*"}))
    assert problem_in_source(anyone, host="x", origins=["null"], sites=["cross-site"]) is None
    assert problem_in_source(anyone, host="x", sites=["cross-site"]) is None
