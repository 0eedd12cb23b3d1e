"""The functions that the layers call, set by the tool filter and by ``fast``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mitmproxy.connection import Client
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers import HttpLayer

type RunHook = Callable[[commands.StartHook], bool]
"""Runs a hook; returns whether all addons have finished. If not, yield the hook."""


def _leave_to_connection(_hook: commands.StartHook) -> bool:
    return False


def _plain_runner(_client: Client) -> RunHook:
    return _leave_to_connection


def _never(_client: Client) -> bool:
    return False


def _count_nothing(_size: int) -> None:
    """Do nothing."""


@dataclass(slots=True)
class Installed:
    """One instance per process."""

    http_layer: type[HttpLayer] | None = None
    """Replaces ``FilteredHttpLayer`` for a client's connection, and behaves the same."""
    hook_runner: Callable[[Client], RunHook] = _plain_runner
    """Returns a function that runs a hook of this client directly."""
    resume: Callable[[Client], bool] = _never
    """Sends a ``ReadOn`` when everything for a client has been sent."""
    meter: Callable[[int], None] = _count_nothing
    """Gets the number of received bytes, from clients and upstreams."""


installed = Installed()


def use_shortcuts(
    http_layer: type[HttpLayer], hook_runner: Callable[[Client], RunHook | None]
) -> None:
    """Use these for all new connections."""
    installed.http_layer = http_layer
    installed.hook_runner = lambda client: hook_runner(client) or _leave_to_connection


def install_resume(resume: Callable[[Client], bool]) -> None:
    """Call ``resume`` to get a ``ReadOn`` when everything for a client has been sent."""
    installed.resume = resume


def install_meter(meter: Callable[[int], None]) -> None:
    """Call ``meter`` with the number of received bytes, from clients and upstreams."""
    installed.meter = meter
