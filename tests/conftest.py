"""What all tests share: a test may be a coroutine function; it gets an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
import signal
import zlib

import pytest
from hypothesis import HealthCheck, settings

# Hypothesis fails an example that takes 0.2 s, and on a busy machine any example can.
settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=(HealthCheck.too_slow,)
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Make the processes that tests start react to signals.

    They would inherit ignored signals: a shell ignores SIGINT for us if it starts us in the
    background, and nohup ignores SIGHUP.
    """
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
