"""The rules of a process: read from their file, at start and when it changes.

One host carries them out. This module is imported only if there is a rules file.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import sys
import time
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from shutil import which
from stat import S_ISREG

from mcp_tool_filter.cli.whole_file import open_at_once, read_whole
from mcp_tool_filter.core.conversation.policy_in_force import RulesAtWork, SessionAtWork
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.rules.forms import Machine
from mcp_tool_filter.rooms.rules.host import OfflineHost, RuleHost, Sender
from mcp_tool_filter.rooms.rules.judge import RulesLink
from mcp_tool_filter.rooms.rules.policy import Policy, load_policy
from mcp_tool_filter.rooms.rules.source import LARGEST
from mcp_tool_filter.rooms.rules.state import StateInMemory, open_state

_LONGEST_HEAD = 256  # bytes that Linux reads of a program to find its interpreter


class ThisMachine(Machine):
    """Finds scripts and Python objects; ``folder`` contains the rules file, and relative paths
    start there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def import_object(self, name: str) -> object:
        """Return the object ``module:name``. Raises ValueError, which says what is wrong."""
        module, _, path = name.partition(":")
        for given in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            if given and os.path.abspath(given) not in sys.path:  # the launcher removed it
                sys.path.append(os.path.abspath(given))
        folder = str(self._folder.resolve())
        added = folder not in sys.path
        if added:  # so that modules beside the rules file are found, as for a script
            sys.path.insert(0, folder)
        try:
            target: object = import_module(module)
        except Exception as error:
            why = str(error) or type(error).__name__
            raise ValueError(f"{module} cannot be imported: {why}") from None
        finally:
            if added:
                sys.path.remove(folder)
        for part in path.split("."):
            try:
                target = getattr(target, part)
            except AttributeError:
                raise ValueError(f"{module} has no {path}") from None
        return target

    def find_script(self, path: str) -> str:
        """Return a script's absolute path. Raises ValueError if it cannot be executed."""
        script = self._folder.resolve() / os.path.expanduser(path)
        if not script.exists():
            raise ValueError(f"there is no script {path}")
        if not script.is_file() or not os.access(script, os.X_OK):
            raise ValueError(f"{path} cannot be executed; chmod +x makes it executable")
        if problem := _problem_in_head(script):
            raise ValueError(f"{path} cannot be executed: {problem}")
        return str(script)


def _problem_in_head(script: Path) -> str:
    """Say why the system would not start a program, as far as its first line tells."""
    if os.name != "posix":
        return ""
    try:
        with script.open("rb") as file:
            head = file.read(_LONGEST_HEAD)
    except OSError:
        return ""  # what may be executed need not be readable
    if not head.startswith(b"#!"):
        is_binary = b"\0" in head and not head.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
        return "" if is_binary else "it does not begin with #! and the path of an interpreter"
    line = head[2:].split(b"\n")[0]
    if line.endswith(b"\r"):
        return "its first line ends with a carriage return, which Linux takes for a letter"
    words = os.fsdecode(line).split()
    interpreter = words[0] if words else ""
    if not os.access(interpreter, os.X_OK) or os.path.isdir(interpreter):
        return f"there is no interpreter {interpreter or 'behind #!'}"
    if os.path.basename(interpreter) == "env" and len(words) == 2 and which(words[1]) is None:
        return f"there is no program {words[1]} on the PATH"
    return ""


_SETTLED = 1.0  # seconds without a change, after which we take a file for complete

log = logging.getLogger(__name__)


class UnreadableRules(StartError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"Cannot read the rules file: {path}", why=why)


class StillWritten(Exception):
    """The file has changed while we read it."""


def read_rules(path: str) -> Policy:
    """Read a policy. Raises StartError if the file cannot be read or has mistakes."""
    return load_policy(_read(path), path, ThisMachine(Path(path).expanduser().parent))


def _read(path: str) -> bytes:
    try:
        return read_whole(str(Path(path).expanduser()), LARGEST)
    except OSError as error:
        raise UnreadableRules(path, error.strerror or str(error)) from None


class WatchedRules:
    """A rules file that may change.

    The beginning of a rules file is often a valid one with fewer rules, so we never read a file
    while it is being written: nobody may have it open for writing, and it must look the same for a
    while, and before and after we read it.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._seen: _Seen | None = None
        self._new: tuple[_Seen, float] | None = None
        """What a changed file looks like, and since when."""
        self._is_gone = self._is_held = False

    def read(self) -> Policy:
        """Read the current file. Raises StartError, or StillWritten if it changes meanwhile."""
        seen = self._look()
        try:
            return read_rules(self.path)
        finally:
            if self._look() != seen:
                raise StillWritten
            self._seen = seen

    def has_changed(self) -> bool:
        """Tell whether the file has changed since it was last read, and is complete.

        A missing file does not count as changed; we log that once.
        """
        seen = self._look()
        if seen is None and not self._is_gone:
            log.warning("The rules file %s is gone; its rules stay in force", self.path)
        self._is_gone = seen is None
        if seen is None or seen == self._seen:
            self._new, self._is_held = None, False
            return False
        if self._new is None or self._new[0] != seen:
            self._new = seen, self._clock()
        if self._clock() - self._new[1] < _SETTLED:
            return False
        if _is_open_for_writing(self.path):
            if not self._is_held:
                log.warning("The old rules stay in force: a program still writes %s", self.path)
            self._is_held = True
            return False
        return True

    def _look(self) -> _Seen | None:
        try:
            about = Path(self.path).expanduser().stat()
        except OSError:
            return None
        if not S_ISREG(about.st_mode):  # a pipe, which has neither a size nor a time of change
            return about.st_ino, 0, 0, 0
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


type _Seen = tuple[int, int, int, int]


def _is_open_for_writing(path: str) -> bool:
    """Tell whether a program has a file open for writing; False if the system cannot tell.

    Linux does not lease a file that somebody could write.
    """
    try:
        from fcntl import F_RDLCK, F_SETLEASE, F_SETSIG, F_UNLCK, fcntl
        from signal import SIGURG
    except ImportError:
        return False
    try:
        with open(Path(path).expanduser(), "rb", opener=open_at_once) as file:
            fcntl(file, F_SETSIG, SIGURG)  # sent to us if somebody opens it now; we ignore it
            fcntl(file, F_SETLEASE, F_RDLCK)
            fcntl(file, F_SETLEASE, F_UNLCK)
    except OSError as error:  # another's file, or a file system without leases
        return error.errno == errno.EAGAIN
    return False


_TRIES = 100
_LOOK_EVERY = 0.25  # seconds


def _read_complete(file: WatchedRules) -> Policy:
    """Read a file that should not change just now. Raises StartError."""
    for _ in range(_TRIES):
        with suppress(StillWritten):
            return file.read()
    raise UnreadableRules(file.path, "It is being written all the time")


class RulesInForce:
    """The rules of one rules file."""

    def __init__(
        self,
        path: str,
        send_copy: Sender | None = None,
        *,
        copies: str = "",
        is_offline: bool = False,
    ) -> None:
        """Raises StartError if the file cannot be used.

        The ids of copies that rules send begin with ``copies``. If ``is_offline``, nothing is sent
        and nothing waits.
        """
        self.path = path
        self._file = WatchedRules(path)
        self.policy = _read_complete(self._file)
        if is_offline:
            self.host: RuleHost = OfflineHost(StateInMemory())
        else:
            self.host = RuleHost(open_state(self.policy.state), send_copy)
        self.links: list[RulesLink] = []
        self._salt = secrets.token_bytes(32)
        self._copies = copies
        self._warn(self.policy)

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of the rules, in order of evaluation."""
        return tuple(rule.id for rule in self.policy.rules) if self.policy.enabled else ()

    def at_work(self, link: RulesLink) -> RulesAtWork:
        """Return what the rules have done at one listener."""
        metrics = sorted(self.host.counters())
        sessions = tuple(SessionAtWork(*facts) for facts in link.sessions_at_work())
        return RulesAtWork(tuple(self._hits(link)), tuple(metrics), sessions)

    def _hits(self, link: RulesLink) -> Iterator[tuple[str, int]]:
        names = (*self.policy.interceptors, *self.names)
        yield from ((name, link.hits[name]) for name in names)

    def link(self, upstream: str, operator: Callable[[], bytes] = bytes) -> RulesLink:
        """Return the link for a listener; ``operator`` returns the credentials that we add."""
        link = RulesLink(
            self.policy,
            self.host.at_once,
            upstream=upstream,
            operator=operator,
            salt=self._salt,
            copies=self._copies,
        )
        self.links.append(link)
        return link

    def replace_file(self, path: str) -> None:
        """Use another file from now on. If it raises StartError, nothing has changed."""
        file = WatchedRules(path)
        self._adopt(_read_complete(file))
        self._file, self.path = file, path

    async def watch(self) -> None:
        """Reload the file whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if self._file.has_changed():
                await self.read_again()

    async def read_again(self) -> None:
        """Reload the file; keep the old rules if that fails."""
        before = self.names
        try:
            policy = await asyncio.to_thread(self._file.read)
            self._adopt(policy)
        except StillWritten:
            return  # we shall see that it has changed
        except StartError as error:
            log.error("The old rules stay in force.\n%s", error)
            return
        except Exception:
            log.exception("The old rules stay in force: the file cannot be read")
            return
        log.info("Read the rules file %s again: %d rules", self.path, len(policy.rules))
        if gone := [name for name in before if name not in self.names]:
            log.warning("Rules that are no longer in force: %s", ", ".join(gone))

    async def close(self) -> None:
        await self.host.close()

    def _adopt(self, policy: Policy) -> None:
        if policy.state != self.policy.state:
            state = open_state(policy.state)
            self.host.replace_state(state)
        self.policy = policy
        self.host.forget_warnings()
        for link in self.links:
            link.adopt(policy)
        self._warn(policy)

    def _warn(self, policy: Policy) -> None:
        for warning in policy.warnings:
            log.warning("Rules: %s", warning)
