"""mitmproxy with less in it still is mitmproxy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.launched import surroundings

HEAVY = ("flask", "ldap3", "tornado", "urwid", "mitmproxy.addons.onboarding")


def test_unneeded_modules_are_not_imported(tmp_path: Path) -> None:
    script = (
        "import sys, json; from mcp_tool_filter.cli.hosts.bare_mitmproxy import keep_addons_apart;"
        "keep_addons_apart(); import mcp_tool_filter.cli.hosts.lean;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=surroundings(tmp_path),
    )
    assert not set(json.loads(ended.stdout)) & set(HEAVY)
