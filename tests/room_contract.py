"""A contract for import-linter: a room imports another one only where a list allows it.

Each line of the list has its reason beside it. A line that nobody needs any more breaks the
contract, too, so that the list says what is true.
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

ROOMS = "mcp_tool_filter.rooms"


class RoomContract(Contract):
    """``allowed`` has lines such as ``page -> audit``; a star is any room."""

    allowed = fields.ListField(fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        allowed = {tuple(line.split(" -> ")) for line in self.allowed}  # type: ignore[attr-defined]
        found = _imports_between(graph)
        wrong = {pair: why for pair, why in found.items() if not allowed & _patterns_of(*pair)}
        used = {one for pair in found for one in _patterns_of(*pair)}
        return ContractCheck(
            kept=not wrong and allowed <= used,
            metadata={"wrong": wrong, "unused": sorted(allowed - used)},
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for (one, other), where in sorted(check.metadata["wrong"].items()):
            output.print_error(f"{one} -> {other} is not allowed: {', '.join(sorted(where))}")
        for one, other in check.metadata["unused"]:
            output.print_error(f"{one} -> {other} is allowed, and nobody needs it")


def _imports_between(graph: ImportGraph) -> dict[tuple[str, str], set[str]]:
    """Return which room imports which, and in which modules."""
    found: dict[tuple[str, str], set[str]] = {}
    for importer in graph.find_descendants(ROOMS):
        for imported in graph.find_modules_directly_imported_by(importer):
            pair = _room_of(importer), _room_of(imported)
            if pair[1] and pair[0] != pair[1]:
                found.setdefault(pair, set()).add(importer)
    return found


def _room_of(module: str) -> str:
    if not module.startswith(f"{ROOMS}."):
        return ""
    return module.removeprefix(f"{ROOMS}.").partition(".")[0]


def _patterns_of(one: str, other: str) -> set[tuple[str, ...]]:
    return {(one, other), ("*", other)}
