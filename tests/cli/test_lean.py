"""mitmproxy with less in it still is mitmproxy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mcp_tool_filter.cli.lean import QuickOptions
from tests.cli.launched import surroundings

HEAVY = ("flask", "ldap3", "tornado", "urwid", "mitmproxy.addons.onboarding")


def test_an_option_that_could_be_changed_in_place_is_a_copy() -> None:
    options = QuickOptions()
    options.set("mode=regular", "listen_port=9")
    options.mode.append("changed")
    assert (options.mode, options.listen_port, options.listen_host) == (["regular"], 9, "")
    assert not hasattr(options, "no_such_option")


def test_what_no_filter_needs_is_not_imported(tmp_path: Path) -> None:
    script = (
        "import sys, json; from mcp_tool_filter.cli.bare_mitmproxy import keep_addons_apart;"
        "keep_addons_apart(); import mcp_tool_filter.cli.lean;"
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
