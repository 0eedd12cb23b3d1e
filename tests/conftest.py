"""What all tests share.

A test may be a coroutine function; it gets an event loop of its own.

A plain ``pytest`` runs, on all cores, what a newcomer has minutes and Python for; it says at the
end what it has left out. ``pytest --rest`` runs just that, ``pytest --whole`` both. A run of named
files or tests leaves nothing out. Left out are tests marked ``rest`` (minutes, or programs that pip
does not install; ``rest(but=1)``: but the first row); all but the first test of a file outside the
core whose tests start programs or whole proxies; and of a table of attacks with many rows all but
every so many.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.hidden import ROOMS, hide

# Hypothesis fails an example that takes 0.2 s, and on a busy machine any example can.
settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=(HealthCheck.too_slow,)
)
settings.load_profile("untimed")


_ROWS = 6
"""Rows of one table that a quick run takes."""

_STARTERS = {
    "subprocess",
    "tests.attacks.hosts",
    "tests.attacks.stage",
    "tests.browser",
    "tests.cli.launched",
    "tests.filtered",
    "tests.hosts",
    "tests.proxy",
    "tests.rooms.serve.test_serve",
    "tests.rooms.stdio.relaying",
    "tests.shapes",
    "tests.stdio_client",
}
"""What starts a program or a whole proxy: a test that uses it costs ten times the others' time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--rest", action="store_true", help="run what a plain run leaves out")
    group.addoption("--whole", action="store_true", help="run all tests")
    group.addoption("--hide-rooms", action="store_true", help="with tests/core: without the rooms")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Use workers for a run of all tests, unless the command line says how many.

    Two a core where most tests wait for processes that they have started, which a quick run leaves
    out; each worker takes ten seconds to read all tests.
    """
    option = config.option
    is_worker = "PYTEST_XDIST_WORKER" in os.environ  # it would start workers of its own
    is_decided = is_worker or option.usepdb or option.numprocesses is not None
    if _takes_all_files(config) and not is_decided:
        option.numprocesses = (os.cpu_count() or 1) * (2 if option.rest or option.whole else 1)
        option.dist = "worksteal"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the quick tests, or the rest."""
    if not (config.option.rest or _is_quick(config)):
        return
    rows: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        rows[item.nodeid.partition("[")[0]].append(item)
    quick = {item for table in rows.values() for item in _quick(table)}
    quick -= set(_after_the_first(item for item in items if item in quick))
    left_out = [item for item in items if (item in quick) is config.option.rest]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if (item in quick) is not config.option.rest]


def _takes_all_files(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def _quick(table: list[pytest.Item]) -> list[pytest.Item]:
    """Return the rows of one test that a quick run takes, spread over the table."""
    kept = [item for item in table if not item.get_closest_marker("rest")]
    if not kept and (marker := table[0].get_closest_marker("rest")):
        return table[: marker.kwargs.get("but", 0)]
    step = max(1, len(kept) // _ROWS) if "/attacks/" in table[0].nodeid else 1
    return kept[::step]


def _after_the_first(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield what a quick run leaves out of the files whose tests start programs."""
    seen = set()
    for item in items:
        if item.path in seen:
            yield item
        elif _starts_programs(item):
            seen.add(item.path)


def _starts_programs(item: pytest.Item) -> bool:
    module = item.getparent(pytest.Module)
    if module is None or "/tests/core/" in item.path.as_posix():
        return False
    used = vars(module.obj).values()
    homes = (it.__name__ if inspect.ismodule(it) else getattr(it, "__module__", "") for it in used)
    return not _STARTERS.isdisjoint(homes)


def _is_quick(config: pytest.Config) -> bool:
    return _takes_all_files(config) and not (config.option.rest or config.option.whole)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, and how to run it."""
    reporter = terminalreporter
    if _is_quick(reporter.config):
        skipped = len(reporter.stats.get("skipped", ()))
        reporter.reportchars = reporter.reportchars.replace("s", "")
        reporter.write_line(
            "Left out: most tests that start programs, rows of long tables, and"
            f" {skipped} tests whose programs are missing (Node, Chromium, Redis …)."
            " To install them and run all: .ci/run"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Hide the rooms, if that is wanted; and make the processes that tests start react to signals.

    They would inherit ignored signals: a shell ignores SIGINT for us if it starts us in the
    background, and nohup ignores SIGHUP.
    """
    if config.option.hide_rooms:
        hide(ROOMS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name what gzip has made by its content: its head holds the time, and names must not."""
    if isinstance(val, bytes) and val.startswith(b"\x1f\x8b"):
        return f"gzip-{len(val)}-{zlib.crc32(val[8:]):08x}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run ``async def test_…`` to its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def _their_log() -> Iterator[None]:
    """Leave OpenTelemetry's logger as it was.

    Traces keep it from the root logger; pytest would then give a later test its lines.
    """
    theirs = logging.getLogger("opentelemetry")
    before = theirs.propagate, list(theirs.handlers)
    yield
    theirs.propagate, theirs.handlers = before
