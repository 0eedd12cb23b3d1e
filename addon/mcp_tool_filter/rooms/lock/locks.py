"""The lock of a process: say what a new one hides, and read its file again at a SIGHUP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.plugs import Plug
from mcp_tool_filter.core.process.site import Site
from mcp_tool_filter.rooms.lock.lock_file import lock_of, read_lock


class Locks(Plug):
    """The lock of all sites. (The table names what reads it: ``lock_file.with_lock``.)"""

    def adopted(self, before: Config) -> None:
        """Tell what another lock hides."""
        proxy = self.proxy
        if before.choice.lock is not proxy.config.choice.lock:
            sites = [] if proxy.runs else proxy.sites.values()
            proxy.log.tell_of_lock(
                [fault for site in sites for fault in site.listener.snapshot.faults]
            )

    def warnings(self, site: Site) -> Iterator[str]:
        listener = site.listener
        lock = listener.config.choice.lock
        if lock and (problem := lock.problem_in(listener.fetched.instructions)):
            yield problem

    def reload(self) -> None:
        """Use what the file of the lock has now, and report it; a broken file changes nothing."""
        config = self.proxy.config
        if (before := lock_of(config)) is None:
            return
        try:
            lock = read_lock(config.lock)
            if lock.digest != before.digest:
                said = f"SIGHUP: the lock has changed: tools approved: {len(lock.tools)}"
                self.proxy.warn(said)
                self.proxy.adopt(replace(config, choice=replace(config.choice, lock=lock)))
        except StartError as error:
            self.proxy.warn(f"Warning: SIGHUP: the old lock stays in force: {error.one_line}")
