"""A session over stdio, in front of a command or a URL: what it shows and keeps; and the relay.

``mcp-tool-filter -- CMD`` runs the relay, in front of a command; ``pipe`` is in front of a URL. We
import neither mitmproxy nor asyncio here. The command starts as soon as the settings are checked;
we import the rest while it starts.

stdin and stdout belong to the client. For people there are the audit log, metrics, traces, a
recording, and lines on stderr. A client may close our stderr, or never read it: then a text is
lost, and nothing waits for it.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, NoReturn

from mcp_tool_filter.cli.line_session import LineSession, plug_in
from mcp_tool_filter.cli.rooms import ROOMS, make_activity
from mcp_tool_filter.cli.settings import Settings
from mcp_tool_filter.core.errors import InvalidOption, StartError
from mcp_tool_filter.rooms.stdio.child import Child, LateWriter, end_child, write_all

if TYPE_CHECKING:
    from mcp_tool_filter.cli.line_session import LineRules, SendCopy
    from mcp_tool_filter.core.conversation.policy_in_force import Judged
    from mcp_tool_filter.core.policy.config import Config
    from mcp_tool_filter.core.policy.situation import Link
    from mcp_tool_filter.core.policy.snapshot import Snapshot
    from mcp_tool_filter.core.process.sentences import Introduction
    from mcp_tool_filter.rooms.recordings.line_recorder import LineRecorder
    from mcp_tool_filter.rooms.stdio.judge import LineJudge, ServerName
    from mcp_tool_filter.rooms.stdio.relay import Happened


class StdioSession:
    """What every session over stdio needs."""

    def __init__(self, settings: Settings, stdin: int, stdout: int) -> None:
        """Raises StartError if its files cannot be written."""
        self.settings = settings
        self.config = settings.config()
        self.stdin = stdin
        self.stdout = stdout
        self.is_ready = False
        """True while it passes messages; for those who look at the metrics."""
        self.shape = LineSession(
            config=self.config,
            name=settings.name,
            config_file=settings.config_file,
            called=lambda: settings.shown_upstream,  # seldom asked, and slow to find
            warn=say_beside_client,
            state=lambda: {"ready": self.is_ready, "upstream_up": 1.0, "sessions": 1.0},
        )
        self._recorder = open_recorder(settings.record) if settings.record else None
        if self._recorder:
            self.shape.ends.callback(self._recorder.end)
        self._show()
        plug_in(ROOMS, self.shape)

    def _show(self) -> None:
        """Show each message, if that is wanted."""
        settings = self.settings
        if settings.verbosity <= 0 or settings.log_format == "none":
            return
        is_json = settings.log_format == "json"
        write = write_beside_client
        if activity := make_activity(sys.stderr, write, lambda flush: flush(), as_json=is_json):
            self.shape.sinks = [activity.show]
            self.shape.ends.callback(lambda: write(activity.end()))

    def read_rules(self, send_copy: SendCopy) -> LineRules | None:
        """Read the rules file, if there is one. Raises StartError."""
        return self.shape.read_rules(send_copy) if self.shape.read_rules else None

    def begin_log(self) -> None:
        from mcp_tool_filter.cli.terminal import log_to_stderr

        as_json = self.settings.log_format == "json"
        log_to_stderr(self.settings.verbosity, as_json=as_json)

    def judge(
        self,
        on_listed: Callable[[Snapshot], None],
        link: Link | None,
        faults: Sequence[str] = (),
        *,
        has_login: bool = False,
    ) -> LineJudge:
        """Return the judge of its lines; ``faults`` of the list are told already."""
        from mcp_tool_filter.core.process.verdict_log import VerdictLog
        from mcp_tool_filter.rooms.stdio.judge import LineJudge  # late: a command starts first

        log, observers = VerdictLog(say_beside_client), self.shape.observers
        log.know(faults)

        def observe(judged: Judged) -> None:
            log.tell_alone(judged)
            for each in observers:
                each(judged)

        def listed(snapshot: Snapshot) -> None:
            on_listed(replace(snapshot, faults=log.know(snapshot.faults)))
            self.shape.know(snapshot)

        judge = LineJudge(
            self.config,
            observe=observe,
            on_listed=listed,
            links=(link,) if link else (),
            recorder=self._recorder,
            propagate=self.shape.propagate,
            tell_hidden=lambda faults, _judged: log.warn_of(faults),
        )
        self._serve_page(judge)
        self.shape.revision = lambda: judge.server.revision
        self.shape.server, self.shape.has_login = lambda: judge.server.name, has_login
        for each in self.shape.on_ready:
            each()
        return judge

    def _serve_page(self, judge: LineJudge) -> None:
        """Let a page of another process show and switch the tools."""
        shape, settings = self.shape, self.settings

        def adopt(config: Config) -> None:
            from mcp_tool_filter.core.policy.config import refuse_to_open

            refuse_to_open(shape.config, config)
            notices = judge.adopt(config)
            shape.config = config
            if shape.snapshot is not None:
                shape.snapshot = judge.policy.snapshot
            if notices:
                shape.tell_client(notices)

        def edit(deny: list[str], exceptions: list[str]) -> str:
            try:
                adopt(settings.with_patterns(deny, exceptions, shape.config))
            except StartError as error:
                return str(error)
            return ""

        shape.policy, shape.adopt, shape.edit_deny = judge.policy, adopt, edit
        shape.sources = settings.sources

    def warn(self) -> None:
        """Print the warnings that need no tool list."""
        from mcp_tool_filter.core.process.sentences import warnings_about

        for warning in warnings_about(self.config):
            say_beside_client(warning)

    def report(self, who: Introduction, snapshot: Snapshot, rules: LineRules | None) -> None:
        """Report the exposed and hidden tools on one line, and warnings below it: clients show
        stderr as errors."""
        from mcp_tool_filter.cli import report

        more = report.lines_about_rules(rules.names if rules else ())
        more += [line for each in self.shape.reports for line in each(snapshot)]
        is_long = self.settings.verbosity > 0
        render = report.render_report if is_long else report.render_line
        text = render(who, snapshot, more)
        if said := report.only_warnings(text) if self.settings.is_quiet else text:
            say_beside_client(said)

    def end(self) -> None:
        """Write what has not been written yet."""
        self.shape.ends.close()


def run_session(settings: Settings, serve: Callable[[StdioSession], int]) -> NoReturn:
    """Run a session to its end, and exit with its status. Raises StartError."""
    stdin, stdout = take_over_stdio()
    with patient_stderr():
        session = StdioSession(settings, stdin, stdout)
        status = serve(session)
        session.end()
    os._exit(status)  # not sys.exit: a thread still waits for the client's input


def open_recorder(path: str) -> LineRecorder:
    """Open a recording that only its owner can read. Raises InvalidOption."""
    from mcp_tool_filter.rooms.recordings.line_recorder import LineRecorder

    mode = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if path.startswith("+") else os.O_TRUNC)
    try:
        descriptor = os.open(path.removeprefix("+"), mode, 0o600)
    except OSError as error:
        raise InvalidOption("--record", path, why=error.strerror or str(error)) from None

    def give_up(error: OSError) -> None:
        why = error.strerror or str(error)
        say_beside_client(f"Warning: The recording {path} ends here: {why}")

    return LineRecorder(os.fdopen(descriptor, "wb"), on_failure=give_up)


_MOST_WAITING = 256 * 1024  # bytes that nobody has read yet
_LAST_WORDS = 1.0  # seconds for a client to read them at the end


def say_beside_client(text: str) -> None:
    """Print a text in the chosen log format."""
    from mcp_tool_filter.cli.terminal import as_said  # late: a relay starts without it

    write_beside_client(as_said(text))


def write_beside_client(text: str) -> None:
    """Print a text unchanged; nothing if there is none."""
    if not text:
        return
    with suppress(OSError, ValueError):  # a client may ignore our stderr
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


@contextmanager
def patient_stderr() -> Iterator[None]:
    """Write to stderr in a thread of its own, within this block."""
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = patient = _PatientStderr()  # stdout belongs to the client
    try:
        yield
    finally:
        patient.close()
        sys.stdout, sys.stderr = before


class _PatientStderr(io.TextIOBase):
    def __init__(self) -> None:
        self._writer = LateWriter(partial(write_all, 2), most=_MOST_WAITING)
        self._dropped = 0

    @property
    def encoding(self) -> str:  # type: ignore[override]  # as in TextIOWrapper
        return "utf-8"

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        more = f"({self._dropped} texts were lost: nobody read stderr)\n" if self._dropped else ""
        data = (text + more).encode("utf-8", "backslashreplace")
        self._dropped = 0 if self._writer.add(data, waits=False) else self._dropped + 1
        return len(text)

    def close(self) -> None:
        """Wait until everything is written, but not for long."""
        self._writer.wait_until_written(_LAST_WORDS)


def take_over_stdio() -> tuple[int, int]:
    """Return descriptors for the client; what anybody else prints goes to stderr from now on.

    A user's Python code in a rule may print, or read, or start programs that do.
    """
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return stdin, stdout


# In front of a command

_STRICT_EOF = 0.5  # seconds for the command to end by itself when --strict ends the session


def run(settings: Settings) -> int:
    """Relay until one side ends. Raises StartError."""
    run_session(settings, partial(_relay, settings))


def _relay(settings: Settings, session: StdioSession) -> int:
    gc.disable()  # all imported objects stay; collecting again and again would only take time
    happened: SimpleQueue[Happened] = SimpleQueue()
    _collect_signals(session, happened)
    rules = session.read_rules(lambda text: relay.tell_command(text))
    child = Child(settings.command, env=settings.env, without=settings.without, cwd=settings.cwd)

    from mcp_tool_filter.rooms.stdio.relay import Relay, RelayedLines  # while it starts

    report = _report_of(settings, session, child, rules)
    deciding = link = None
    if rules:
        from mcp_tool_filter.rooms.stdio.waiting import DecidingThread

        deciding = DecidingThread(rules)
        link = rules.link_to_command(settings.upstream, settings.env, settings.cwd)
    session.begin_log()
    judge = session.judge(lambda snapshot: report(snapshot, judge.server), link)
    session.warn()  # now, because the report comes only with the first list
    gc.freeze()
    gc.enable()
    lines = RelayedLines(
        child,
        judge,
        happened,
        say=say_beside_client,
        limits=session.config.limits,
        stdout=session.stdout,
        deciding=deciding,
    )
    session.shape.tell_client = partial(_in_background, lines.tell_client)
    relay = Relay(lines, stdin=session.stdin)
    session.is_ready = True
    status = relay.run()
    lines.close()
    return status


def _in_background(tell: Callable[[list[bytes]], None], lines: list[bytes]) -> None:
    """Tell the client, who may read nothing for long."""
    Thread(target=tell, args=(lines,), daemon=True).start()


def _report_of(
    settings: Settings, session: StdioSession, child: Child, rules: LineRules | None
) -> Callable[[Snapshot, ServerName], None]:
    """Return what reports the tools, once the client is about to see the complete list."""
    from mcp_tool_filter.core.process.sentences import Introduction
    from mcp_tool_filter.core.process.start import refuse_start

    upstream = settings.shown_upstream  # now, while the command starts

    def report(snapshot: Snapshot, server: ServerName) -> None:
        try:
            refuse_start(session.config, [snapshot])
        except StartError as error:  # before anything is answered
            say_beside_client(str(error))
            end_child(child, eof=_STRICT_EOF)
            session.end()
            sys.stderr.close()
            os._exit(1)
        who = Introduction(
            upstream=upstream,
            server=server.name.strip() or "unnamed",
            transport="stdio",
            revision=server.revision,
            listens_at="stdio",
            is_shadow=session.config.shadow,
        )
        session.report(who, snapshot, rules)

    return report


def _collect_signals(session: StdioSession, happened: SimpleQueue[Happened]) -> None:
    """Queue signals to pass them on. Signals that are ignored in this process stay ignored."""

    def note(number: int, _frame: object) -> None:
        session.is_ready = False
        happened.put(number)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, note)
