"""Tables whose rows are one test together: a test of its own costs more than most rows.

@each_row(("url", "path"), [("http://a/m", "/m"), ("http://a", "")])
def test_a_path_is_read(url: str, path: str) -> None:
    assert path_of(url) == path

All rows run; the test fails with an error for each row that fails. Use ``pytest.mark.parametrize``
where rows take long, or have fixtures of their own (here they share them).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

type _Test = Callable[..., Any]


def each_row(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[_Test], _Test]:
    """Run a test with each row of a table, as ``pytest.mark.parametrize`` would."""
    keys = [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)
    table = [_values(row, len(keys)) for row in rows]
    assert table, "a test without rows proves nothing"

    def decorate(test: _Test) -> _Test:
        def calls() -> Iterator[tuple[list[Exception], dict[str, Any]]]:
            failed: list[Exception] = []
            for row in table:
                yield failed, dict(zip(keys, row, strict=True))
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(table)} rows fail", failed)

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run(*own: Any, **given: Any) -> None:
                for failed, row in calls():
                    with _collected(failed, row):
                        await test(*own, **given, **row)

        else:

            @functools.wraps(test)
            def run(*own: Any, **given: Any) -> None:
                for failed, row in calls():
                    with _collected(failed, row):
                        test(*own, **given, **row)

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]  # pytest asks for these
        return run

    return decorate


def _values(row: Any, count: int) -> Sequence[Any]:
    if isinstance(row, type(pytest.param())):
        assert not row.marks, "only a whole test can have a mark"
        return row.values
    return row if count > 1 else (row,)


@contextmanager
def _collected(failed: list[Exception], row: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in the row {row!a}"[:1000])
        failed.append(error)
