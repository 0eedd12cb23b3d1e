"""Hide modules, as if they were not installed: importing one raises ModuleNotFoundError.

    python -m tests.hidden mcp_tool_filter.rooms -- --upstream http://localhost:3000/mcp

runs the launcher without its rooms, in this process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ROOMS = "mcp_tool_filter.rooms"


class Hidden(MetaPathFinder):
    """Finds no module below these packages, and lets nobody else look for one."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if any(name == one or name.startswith(f"{one}.") for one in self._names):
            raise ModuleNotFoundError(f"No module named {name!r}: the test hides it", name=name)
        return None


def hide(*names: str) -> None:
    """Hide these modules from now on, also those that were imported already."""
    for name in list(sys.modules):
        if any(name == one or name.startswith(f"{one}.") for one in names):
            del sys.modules[name]
    sys.meta_path.insert(0, Hidden(names))


def main(argv: Sequence[str]) -> int:
    cut = list(argv).index("--")
    hide(*argv[:cut])
    from mcp_tool_filter.cli.launcher import main as launch

    return launch(argv[cut + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
