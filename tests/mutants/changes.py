"""The small changes of a module: one operator, constant or condition each."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

_COMPARED = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_CALCULATED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.BitOr: "&", ast.BitAnd: "|"}
_NOT_RUN = (
    "TYPE_CHECKING",
    "MOST_",
    "LONGEST_",
)  # of types, and numbers that a test need not reach


@dataclass(frozen=True, slots=True)
class Change:
    """One place of a module's text, and what stands there instead."""

    path: Path
    function: str
    line: int
    start: int
    end: int
    before: str
    after: str
    nth: int = 0
    """Which of the changes of this function that read the same, from above."""

    @property
    def name(self) -> str:
        """What it is called in the list of survivors: no number of a line, which would move."""
        nth = f" #{self.nth + 1}" if self.nth else ""
        return f"{self.path.stem}.{self.function}: {self.before} -> {self.after}{nth}"

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    def applied(self) -> bytes:
        text = self.path.read_bytes()
        return text[: self.start] + self.after.encode() + text[self.end :]


def changes(path: Path) -> list[Change]:
    """Return all small changes of a module, in the order of its text."""
    text = path.read_bytes()
    reader = _Reader(path, text)
    reader.visit(ast.parse(text))
    seen: Counter[str] = Counter()
    numbered = []
    for change in sorted(reader.found, key=lambda change: change.start):
        numbered.append(replace(change, nth=seen[change.name]))
        seen[change.name] += 1
    return numbered


class _Reader(ast.NodeVisitor):
    def __init__(self, path: Path, text: bytes) -> None:
        self.found: list[Change] = []
        self._path = path
        self._text = text
        self._functions: list[str] = []
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def visit_FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> None:
        self._functions.append(node.name)
        body = node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        for statement in body:
            self.visit(statement)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_ClassDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_TypeAlias(self, node: ast.TypeAlias) -> None:
        """A type is not run."""

    def visit_Assign(self, node: ast.Assign) -> None:
        if not ast.unparse(node.targets[0]).lstrip("_").startswith(_NOT_RUN):
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in _NOT_RUN:
            self._condition(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)  # its condition turned round seldom ends

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if after := _COMPARED.get(type(operator)):
                self._between(left, right, after)
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        after = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in pairwise(node.values):
            self._between(left, right, after)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if after := _CALCULATED.get(type(node.op)):
            self._between(node.left, node.right, after)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._instead(node, str(not node.value))
        elif isinstance(node.value, int):
            self._instead(node, str(node.value + 1))

    def visit_Continue(self, node: ast.Continue) -> None:
        self._instead(node, "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._instead(node, "continue")

    def _condition(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare):  # its operator is changed already
            self._instead(test, f"(not ({self._read(test)}))")

    def _between(self, left: ast.expr, right: ast.expr, after: str) -> None:
        """Change the operator: the word between its sides, brackets and comments apart."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._text[start:end].decode()
        if operator := between.strip().strip("()").strip():
            if "#" in operator or "\n" in operator:
                return
            begin = start + len(between[: between.index(operator)].encode())
            self._add(left, begin, begin + len(operator.encode()), operator, after)

    def _instead(self, node: ast.expr | ast.stmt, after: str) -> None:
        self._add(node, *self._span(node), self._read(node), after)

    def _add(self, node: ast.AST, start: int, end: int, before: str, after: str) -> None:
        line = node.lineno  # type: ignore[attr-defined]  # statements and expressions have it
        function = ".".join(self._functions)
        before = " ".join(before.split())
        after_name = " ".join(after.split()) if "\n" in before else after
        self.found.append(Change(self._path, function, line, start, end, before, after_name))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _read(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._text[start:end].decode()


def read_all(paths: Iterable[Path]) -> Iterator[Change]:
    """Yield the changes of modules, and of all modules of folders."""
    for path in paths:
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield from changes(module)
