"""What the layers call, as the tool filter and ``fast`` have set it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mitmproxy.connection import Client
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers import HttpLayer

type RunHook = Callable[[commands.StartHook], bool]
"""Runs a hook; returns whether all addons have finished. If not, the hook is to be yielded."""


def _leave_to_connection(_hook: commands.StartHook) -> bool:
    return False


def _plain_runner(_client: Client) -> RunHook:
    return _leave_to_connection


def _never(_client: Client) -> bool:
    return False


def _count_nothing(_size: int) -> None:
    """Nobody wants to know how much comes in."""


@dataclass(slots=True)
class Installed:
    """One for each process."""

    http_layer: type[HttpLayer] | None = None
    """Reads a client's connection in place of ``FilteredHttpLayer``, and does the same."""
    hook_runner: Callable[[Client], RunHook] = _plain_runner
    """Returns what runs a hook of this client at once, without the way up to the connection."""
    resume: Callable[[Client], bool] = _never
    """Sends a ``ReadOn`` when all that was said to a client is sent."""
    meter: Callable[[int], None] = _count_nothing
    """Takes the number of bytes that come in, from clients and upstreams."""


installed = Installed()


def use_shortcuts(
    http_layer: type[HttpLayer], hook_runner: Callable[[Client], RunHook | None]
) -> None:
    """Read all connections that come from now on this way."""
    installed.http_layer = http_layer
    installed.hook_runner = lambda client: hook_runner(client) or _leave_to_connection


def install_resume(resume: Callable[[Client], bool]) -> None:
    """Call ``resume`` to be sent a ``ReadOn`` when all that was said to a client is sent."""
    installed.resume = resume


def install_meter(meter: Callable[[int], None]) -> None:
    """Call ``meter`` with the number of bytes that come in, from clients and upstreams."""
    installed.meter = meter
