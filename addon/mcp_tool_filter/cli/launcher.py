"""Choose what to run from the command line, and import only what that needs.

Python 3.9 must be able to parse this module, ``__main__`` and what they import, so that an old
version gets a clear message instead of a SyntaxError.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from errno import EIO, ENOENT, ENOSPC, EPIPE
from importlib import import_module
from io import TextIOWrapper
from types import FrameType

from mcp_tool_filter import __version__, how_to_run
from mcp_tool_filter.core.errors import StartError

TYPE_CHECKING = False  # as in typing, which --version need not import
if TYPE_CHECKING:
    from mcp_tool_filter.cli.flags import Given
    from mcp_tool_filter.cli.settings import Settings

_NEEDED = (3, 12)


_WRAPPED = frozenset({"--", "--stdio", "--server"})
"""What clients' entries have: their variables are for the server."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    args = sys.argv[1:] if argv is None else list(argv)
    end_on_sigterm(0 if _is_proxy(args) else 128 + signal.SIGTERM)
    if sys.version_info < _NEEDED:
        return _refuse_python()
    _open_closed_descriptors()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: not all can show "…"
    if any(one.partition("=")[0] in _WRAPPED for one in args):
        _leave_python_path_to_the_command()
    if args[:1] == ["--version"]:
        return _show_version()
    try:
        status = _run(args)
        sys.stdout.flush()
        return status
    except RuntimeError as error:
        if "home directory" not in str(error):  # pathlib's
            raise
        print("Error: Your home folder is not known\nSet HOME", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None and error.errno == ENOENT:  # os.getcwd's
            print("Error: The current folder is gone\nGo to another one", file=sys.stderr)
            return 1
        if error.filename is not None or error.errno not in (EPIPE, ENOSPC, EIO):
            raise
        # Python would try to write to stdout again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == EPIPE:  # the reader is gone
            return 1
        print(f"Error: Cannot write the output\n{error.strerror}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("mcp_tool_filter.rooms"):
            raise
        what = "Error: This does not work in this installation"
        print(f"{what}\n{error.name} is not installed", file=sys.stderr)
        return 1
    except StartError as error:
        print(import_module("mcp_tool_filter.cli.flags").with_flags(str(error)), file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:  # a proxy exits with 0 itself
        return 128 + signal.SIGINT


def _is_proxy(args: Sequence[str]) -> bool:
    """Tell whether this runs until it is told to end, which is then no failure."""
    before = args[: args.index("--")] if "--" in args else args
    is_filter = not args or args[0].startswith("-")
    return args[:1] == ["serve"] or (is_filter and _LOOKS.isdisjoint(before))


_LOOKS = frozenset({"--list-tools", "--dry-run", "--json", "--help", "-h", "--version"})


def _run(args: list[str]) -> int:
    if args and not args[0].startswith("-"):
        from mcp_tool_filter.cli.flags import WORDS, MissingUpstream
        from mcp_tool_filter.cli.table import COMMANDS

        if args[0] in COMMANDS:
            command = COMMANDS[args[0]]
            typed = command.parse(args[1:])
            if "help" in typed:
                show = import_module("mcp_tool_filter.cli.help").show_help
                return int(show(command, is_short=_is_short(args)))
            command.check(typed)
            module, _, function = command.function.rpartition(".")
            run = getattr(import_module(f"mcp_tool_filter.{module}"), function)
            words = " ".join([args[0], *typed.get(WORDS, [])])
            try:
                return int(run(typed))
            except MissingUpstream:
                raise MissingUpstream(words) from None
    return _run_filter(args)


# Without a command's name: the filter


def _run_filter(argv: Sequence[str]) -> int:
    """Run what the flags ask for; return the exit status. Raises StartError."""
    from mcp_tool_filter.cli.flags import parse_flags

    typed = parse_flags(argv)
    if "version" in typed:
        return _show_version()
    if "help" in typed:
        return _show_help("render_short_help" if _is_short(argv) else "render_help")
    from mcp_tool_filter.cli.settings import chosen, read_sources

    if "server" in typed:
        given, settings = typed, chosen(typed, os.environ)
    else:
        sources = read_sources(typed, os.environ)
        given = sources.given()
        if argv in ([], ["--json"]) and not {"upstream", "upstream-cmd"} & given.keys():
            return _show_overview(typed)
        settings = sources.settled(given)
    if how := _way_to_look(given):
        return int(import_module("mcp_tool_filter.cli.commands.look").show_tools(settings, how))
    if settings.is_stdio:
        refuse_what_needs_http(given)
    _warn_about_unused(typed, settings)
    way = "cli.commands.http"
    if settings.is_stdio:
        way = f"rooms.stdio.{'command' if settings.command else 'pipe_command'}"
    try:
        return int(import_module(f"mcp_tool_filter.{way}").run(settings))
    except KeyboardInterrupt:
        return 0


def _show_overview(typed: Given) -> int:
    try:
        room = import_module("mcp_tool_filter.rooms.overview.command")
    except ModuleNotFoundError:  # an installation without it
        return _show_help("render_first_steps")
    return int(room.run(typed))


def _way_to_look(given: Given) -> str | None:
    """Return the format of a preview, if the filter should not run at all."""
    from mcp_tool_filter.cli.flags import UsageError

    prints_json = "json" in given
    if "dry-run" in given:
        return "report-json" if prints_json else "report"
    if "list-tools" in given:
        return "json" if prints_json else "table"
    if prints_json:
        raise UsageError("--json needs --list-tools or --dry-run")
    return None


def refuse_what_needs_http(given: Given) -> None:
    """Refuse flags that have no effect over stdio."""
    from mcp_tool_filter.cli.flags import UsageError

    if "dashboard" in given:
        why = "Add --port to serve HTTP, or leave it out; --audit-log FILE works over stdio, too"
        raise UsageError("--dashboard does not work over stdio", why=why)


def _warn_about_unused(typed: Given, settings: Settings) -> None:
    """Warn about typed flags that change nothing: the user may rely on one."""
    from mcp_tool_filter.cli.options import A_FETCH, A_URL, HTTP, OPTIONS

    missing = {
        A_URL: settings.command and "with a command",
        A_FETCH: settings.command and settings.is_stdio and "with a command over stdio",
        HTTP: settings.is_stdio and "over stdio",
    }
    for name in filter(OPTIONS.__contains__, typed):
        if where := next(filter(None, map(missing.get, OPTIONS[name].needs)), None):
            from mcp_tool_filter.cli.terminal import say  # seldom needed

            say(f"Warning: --{name} has no effect {where}")
    import_module("mcp_tool_filter.cli.settings").warn_about_lonely(typed, settings)


def _show_version() -> int:
    commit = _commit_of_clone()
    print(f"mcp-tool-filter {__version__}" + (f" (commit {commit})" if commit.isalnum() else ""))
    return 0


def _commit_of_clone() -> str:
    """Return the commit of the clone that we run from, without git; empty if there is none."""
    addon = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folder = os.path.join(os.path.dirname(addon), ".git")
    try:
        if os.path.basename(addon) != "addon":  # installed
            return ""
        if os.path.isfile(folder):  # a linked work tree, or a submodule
            folder = os.path.join(os.path.dirname(folder), _read(folder)[len("gitdir: ") :])
        head, _, ref = _read(folder, "HEAD").partition("ref: ")
        if not ref:
            return head
        if os.path.exists(os.path.join(folder, "commondir")):
            folder = os.path.join(folder, _read(folder, "commondir"))
        if os.path.exists(os.path.join(folder, ref)):
            return _read(folder, ref)
        packed = _read(folder, "packed-refs").splitlines()
        return next((line.split()[0] for line in packed if line.split()[1:] == [ref]), "")
    except (OSError, ValueError):
        return ""


def _read(*path: str) -> str:
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read().strip()


def _is_short(args: Sequence[str]) -> bool:
    """Tell whether one screen of help is enough: ``-h``."""
    return "--help" not in args[: args.index("--") if "--" in args else None]


def _show_help(what: str) -> int:
    print(getattr(import_module("mcp_tool_filter.cli.help"), what)(), end="")
    return 0


# The process


def _leave_python_path_to_the_command() -> None:
    """Import nothing from PYTHONPATH, except ourselves: a client sets it for a wrapped server.

    (Python code of rules may use it.)
    """
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    given = os.environ.get("PYTHONPATH", "")
    others = {os.path.abspath(one) for one in given.split(os.pathsep) if given} - {ours}
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) not in others]


def _open_closed_descriptors() -> None:
    """Replace a stdin, stdout or stderr that is closed: else the next file that we open gets its
    number, and what is meant for people, or for a client, is written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def end_on_sigterm(status: int) -> None:
    """Make SIGTERM clean up like an exit with this status."""

    def end(_number: int, frame: FrameType | None) -> None:
        if frame is None or not frame.f_code.co_filename.startswith("<frozen importlib"):
            sys.exit(status)
        # Python's own code for imports swallows what a handler raises in its callbacks.
        if sys.platform != "win32":
            signal.signal(signal.SIGALRM, end)
            signal.setitimer(signal.ITIMER_REAL, 0.01)

    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, end)


def _refuse_python() -> int:
    needed, found = (".".join(map(str, version[:3])) for version in (_NEEDED, sys.version_info))
    print(
        f"Error: mcp-tool-filter needs Python {needed} or newer; this is Python {found}\n"
        f"uv can install it for you: {how_to_run(needed)}",
        file=sys.stderr,
    )
    return 1
