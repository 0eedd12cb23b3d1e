"""Remember, for ``doctor``, which servers were seen in the last run of each client."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mcp_tool_filter.adapters.run.expected import SeenTraffic, Server, Way, why_not_seen
from mcp_tool_filter.adapters.whole_file import whole_file

_MOST = 1024 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Last:
    """The result of the last run."""

    ended: float
    seen: tuple[str, ...]
    """The names of servers that came through us."""
    missing: tuple[tuple[str, str, str], ...]
    """Name, URL and explanation of the servers that did not."""


def state_file(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "mcp-tool-filter" / "runs.json"


def keep_last(
    client: str, servers: Sequence[Server], missing: Sequence[Server], seen: SeenTraffic
) -> None:
    """Save the result of this run; ignore it if that fails."""
    with suppress(OSError, RuntimeError):
        file = state_file(os.environ)
        entry = {
            "ended": time.time(),
            "seen": [
                one.name for one in servers if one not in missing and one.way is not Way.COMMAND
            ],
            "missing": [[one.name, one.url, why_not_seen(one, seen)] for one in missing],
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as new:
            new.write(json.dumps({**_read(file), client: entry}).encode())


def last_of(client: str) -> Last | None:
    """Return the result of a client's last run; None if there was none."""
    try:
        entry = _read(state_file(os.environ)).get(client)
        assert isinstance(entry, dict)
        missing = tuple((str(a), str(b), str(c)) for a, b, c in entry["missing"])
        return Last(float(entry["ended"]), tuple(map(str, entry["seen"])), missing)
    except (AssertionError, KeyError, TypeError, ValueError, OSError, RuntimeError):
        return None


def _read(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(_MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
