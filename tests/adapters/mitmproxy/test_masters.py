"""The launcher imports of mitmproxy only what its lean master needs, and the rest on demand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.launched import surroundings

HEAVY = {"flask", "ldap3", "tornado", "urwid", "mitmproxy.addons.onboarding"}
_PROGRAM = """
import json, sys
from mcp_tool_filter.cli.commands.in_mitmproxy import keep_addons_apart
keep_addons_apart()
from mcp_tool_filter.adapters.mitmproxy import masters
print(json.dumps(sorted(sys.modules)))
for _ in range(2):
    masters._put_addons_together()
    import mitmproxy.addons
    print(bool(mitmproxy.addons.default_addons()))
    keep_addons_apart()  # too late, and without effect
"""


def test_addons_that_are_not_needed_are_imported_only_on_demand(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=surroundings(tmp_path),
    )
    imported, *together = ended.stdout.split("\n")
    assert not set(json.loads(imported)) & HEAVY
    assert together == ["True", "True", ""]
