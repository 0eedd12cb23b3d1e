"""Single addons of mitmproxy can be imported without all the others."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from mcp_tool_filter.cli.hosts.bare_mitmproxy import keep_addons_apart, put_addons_together
keep_addons_apart()
import mitmproxy.addons.core
print("mitmproxy.addons.onboarding" in sys.modules, "flask" in sys.modules)
put_addons_together()
import mitmproxy.addons
print(bool(mitmproxy.addons.default_addons()))
keep_addons_apart()  # too late, and without effect
put_addons_together()
import mitmproxy.addons
print(bool(mitmproxy.addons.default_addons()))
"""


def test_other_addons_of_mitmproxy_are_imported_only_on_demand() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={"PYTHONPATH": "addon"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "False False\nTrue\nTrue\n", done.stderr
