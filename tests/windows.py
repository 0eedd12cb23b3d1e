"""Run our command with the facts of Windows in the place of this machine's.

    python -m tests.windows --upstream http://localhost:3000/mcp --deny '^delete_'

What our code asks about a platform is answered as Python on Windows answers it: modules, functions
and signals that are not there, event loops that take no signals, locks of another kind. The rest
(paths, sockets, how processes start) is still this machine's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

MODULES = ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "curses", "readline")
_OF_OS = (
    "pread", "pwrite", "fchown", "chown", "killpg", "getpgid", "getpgrp", "tcgetpgrp", "setsid",
    "fork", "geteuid", "getuid", "getegid", "getgid", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY",
    "O_NOFOLLOW", "O_DIRECTORY", "mkfifo", "sched_getaffinity", "openpty", "posix_spawn",
)  # fmt: skip
_OF_SIGNAL = (
    "SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGPIPE", "SIGCHLD",
    "SIGURG", "SIGTSTP", "SIGCONT", "SIGQUIT", "setitimer", "ITIMER_REAL",
)  # fmt: skip


_IS_DIFFERENT = {"os": {"name": "nt"}, "sys": {"platform": "win32"}}
_IS_MISSING = {"os": _OF_OS, "signal": _OF_SIGNAL, "socket": ("AF_UNIX",), "select": ("poll",)}


class Hides:
    """Finds no module of these names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide_modules() -> None:
    """Hide the modules from all that is imported from now on."""
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hides(MODULES))


class Other(ModuleType):
    """A module as it is elsewhere."""

    def __init__(self, name: str) -> None:
        vars(self)["_real"] = sys.modules[name]
        vars(self)["_missing"] = _IS_MISSING.get(name, ())
        vars(self).update(_IS_DIFFERENT.get(name, {}))

    def __getattr__(self, name: str) -> Any:
        if name in vars(self)["_missing"]:
            raise AttributeError(f"there is no {name} on Windows", name=name)
        return getattr(vars(self)["_real"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)["_real"], name, value)


def be_windows() -> None:
    """Change what our modules find. Python's own library, and what others wrote, have code of their
    own for Windows: they are imported before."""
    for name in _OF_OTHERS:
        import_module(name)
    hide_modules()
    locks = ModuleType("msvcrt")
    vars(locks).update(LK_NBLCK=2, locking=lambda _handle, _mode, _size: None)
    for name in ("add_signal_handler", "remove_signal_handler", "add_reader", "remove_reader"):
        setattr(asyncio.SelectorEventLoop, name, _not_there)
    others = {name: Other(name) for name in {**_IS_MISSING, **_IS_DIFFERENT}}
    sys.modules.update(others, msvcrt=locks)


_OF_OTHERS = (
    "mitmproxy.tools.dump", "mitmproxy.addons", "mitmproxy.proxy.server", "mitmproxy_rs", "asyncio",
    "ctypes", "http.client", "importlib.metadata", "multiprocessing", "shutil", "ssl",
    "subprocess", "tempfile", "urllib.request", "webbrowser", "h11", "mitmproxy.http", "orjson",
    "urwid", "tomlkit", "concurrent.futures", "logging.handlers", "getpass",
)  # fmt: skip


def _not_there(*_args: object) -> NoReturn:
    raise NotImplementedError


if __name__ == "__main__":
    be_windows()
    main = import_module("mcp_tool_filter.cli.launcher").main
    sys.exit(main(sys.argv[1:]))
