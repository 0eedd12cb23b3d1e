"""Real clients and servers: none of it is in a quick run.

Where time is short, FILTER_TESTS_PAIRS=sample takes a sample of each matrix: of each file, every
test, every client and every server at least once. `.ci/run` takes the sample, `.ci/full` all pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Page, browser
from tests.end_to_end.web_pages import Web, mitmweb, running_demo

from .pairs import Pair

HERE = Path(__file__).parent
MATRICES = {
    "test_changing_tools", "test_client_programs", "test_known_servers", "test_login",
    "test_login_through", "test_peers_filtered", "test_restarts", "test_run", "test_stdio_peers",
}  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("rest")
    if os.environ.get("FILTER_TESTS_PAIRS") != "sample":
        return
    met: set[tuple[str, ...]] = set()
    left_out = []
    for item in items:
        new = {*_who_meets(item)} - met
        if item.path.stem in MATRICES and isinstance(item, pytest.Function) and not new:
            left_out.append(item)
        met |= new
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def _who_meets(item: pytest.Item) -> Iterator[tuple[str, ...]]:
    """Return who takes part, each with the file in which it does; the test itself is one more."""
    yield (item.nodeid.partition("[")[0],)
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return
    for name, value in item.callspec.params.items():
        parts = (value.server, value.client) if isinstance(value, Pair) else (value,)
        for number, part in enumerate(parts):
            yield item.path.stem, name, str(number), str(part)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with running_demo() as port, mitmweb(tmp_path, port) as running:
        running.client.begin()
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(chromium: Page) -> Page:
    """An empty page of the size of a laptop's, in light colours."""
    chromium.go("about:blank")
    chromium.resize(1280, 860)
    chromium.prefer("light")
    chromium.errors()  # what the browser has complained of until now
    return chromium
