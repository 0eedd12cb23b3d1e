"""``mcp-tool-filter logout``."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands.logging_in import run
from tests.oauth_upstream import oauth_upstream


def test_logout_can_end_all_logins(tmp_path: Path) -> None:
    with oauth_upstream() as first, oauth_upstream() as second:
        for upstream in (first, second):
            assert run("login", upstream.url, home=tmp_path)[0] == 0
        status, out, _ = run("logout", "--all", home=tmp_path)
        assert status == 0
        assert set(out.splitlines()) == {f"Logged out of {one.url}" for one in (first, second)}
