"""Errors in the command line, in one helpful line.

>>> print(no_such("flag", "--dney", ["--deny", "--port"]))
Error: There is no flag --dney: did you mean --deny?
See mcp-tool-filter --help
"""

from __future__ import annotations

from collections.abc import Iterable

from mcp_tool_filter.errors import StartError

EXIT_STATUS = 2


class UsageError(StartError):
    """The command line, the environment or the config file has a mistake."""

    exit_status = EXIT_STATUS

    def __init__(self, what: str, *, why: str = "See mcp-tool-filter --help") -> None:
        super().__init__(what, why=why)


def no_such(
    kind: str, name: str, known: Iterable[str], *, help: str = "mcp-tool-filter --help"
) -> UsageError:
    """Return an error that there is no such thing, and what the user may have meant."""
    meant = closest(name, known)
    what = f"There is no {kind} {name}" + (f": did you mean {meant}?" if meant else "")
    return UsageError(what, why=f"See {help}")


def closest(name: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # slow to import, and seldom needed

    return next(iter(get_close_matches(name, known, n=1)), None)
