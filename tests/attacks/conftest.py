"""The stage that most attacks are played on: one for each module."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.attacks.stage import Stage, open_stage


@pytest.fixture(scope="module", params=["mitmproxy", "sockets"])
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Raise a stage; a module may say in ``STAGE`` which options the addon gets."""
    options = getattr(request.module, "STAGE", {})
    with asyncio.Runner() as runner:
        home = tmp_path_factory.mktemp("home")
        stage, stack = open_stage(runner, home, host=request.param, **options)
        yield stage
        runner.run(stack.aclose())
