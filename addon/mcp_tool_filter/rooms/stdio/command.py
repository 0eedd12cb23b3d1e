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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, NoReturn

from mcp_tool_filter.cli.settings import Settings
from mcp_tool_filter.core.errors import InvalidOption, StartError
from mcp_tool_filter.rooms.stdio.child import Child, LateWriter, end_child, write_all

if TYPE_CHECKING:
    from mcp_tool_filter.core.conversation.policy_in_force import Judged, Observer, Propagate
    from mcp_tool_filter.core.policy.situation import Link
    from mcp_tool_filter.core.policy.snapshot import Snapshot
    from mcp_tool_filter.core.process.sentences import Introduction
    from mcp_tool_filter.rooms.recordings.line_recorder import LineRecorder
    from mcp_tool_filter.rooms.rules.file import RulesInForce
    from mcp_tool_filter.rooms.rules.host import EnterLog
    from mcp_tool_filter.rooms.stdio.judge import LineJudge, ServerName
    from mcp_tool_filter.rooms.stdio.relay import Happened
    from mcp_tool_filter.rooms.telemetry.watching import Sink


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
        self._observers: list[Observer] = []
        self._propagate: Propagate | None = None
        self._enter_log: EnterLog | None = None
        self._audit_log: Callable[[], str | None] = lambda: None
        self._ends = ExitStack()
        self._recorder = open_recorder(settings.record) if settings.record else None
        if self._recorder:
            self._ends.callback(self._recorder.end)
        self._watch(self._trace() if self.config.otel else None)
        self._presence: _Presence | None = None
        if os.environ.get("XDG_RUNTIME_DIR"):
            self._presence = presence = _Presence(settings, self._audit_log)
            self._observers.append(lambda judged: presence.note(judged))
            self._ends.callback(presence.end)

    def _watch(self, send: Sink | None) -> None:
        """Write the audit log, serve metrics, and show messages, if that is wanted.

        ``send`` gets the audit log's entries, too.
        """
        settings, config = self.settings, self.config
        is_shown = settings.verbosity > 0 and settings.log_format != "none"
        if not (config.audit or config.metrics or is_shown or send):
            return
        from mcp_tool_filter.rooms.audit.activity import Activity
        from mcp_tool_filter.rooms.telemetry.watching import Surveyed, Watching

        is_json = settings.log_format == "json"
        activity = Activity(sys.stderr, write_beside_client, lambda flush: flush(), as_json=is_json)
        surveyed = Surveyed(
            lambda: {"ready": self.is_ready, "upstream_up": 1.0, "sessions": 1.0}, say_beside_client
        )
        watching = Watching(
            config,
            [activity.show] if is_shown else [],
            surveyed=surveyed,
            keep=[send] if send else [],
        )
        if is_shown:
            self._ends.callback(lambda: write_beside_client(activity.end()))
        self._ends.callback(watching.close)
        self._observers.append(watching.observe)
        self._enter_log = watching.enter_log
        self._audit_log = lambda: watching.audit_log

    def _trace(self) -> Sink:
        from mcp_tool_filter.rooms.telemetry.tracing import Tracer

        tracer = Tracer()  # StartError without OpenTelemetry
        self._ends.callback(tracer.close)
        self._observers.append(tracer.observe)
        self._propagate = tracer.propagate
        return tracer.show

    def read_rules(self, send_copy: Callable[[bytes], object]) -> RulesInForce | None:
        """Read the rules file, if there is one. Raises StartError."""
        if not self.config.rules:
            return None
        from mcp_tool_filter.rooms.rules.copies import Copies
        from mcp_tool_filter.rooms.rules.file import RulesInForce

        copies = Copies(lambda text, _effect: send_copy(text))
        rules = RulesInForce(self.config.rules, copies.send, copies=copies.id_prefix)
        if self._enter_log:
            rules.host.enter_log = self._enter_log
        return rules

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
        from mcp_tool_filter.core.process.sentences import VerdictLog
        from mcp_tool_filter.rooms.stdio.judge import LineJudge  # late: a command starts first

        log = VerdictLog(say_beside_client)
        log.know(faults)

        def observe(judged: Judged) -> None:
            log.tell_alone(judged)
            for each in self._observers:
                each(judged)

        def listed(snapshot: Snapshot) -> None:
            on_listed(replace(snapshot, faults=log.know(snapshot.faults)))
            self.know(snapshot)

        judge = LineJudge(
            self.config,
            observe=observe,
            on_listed=listed,
            links=(link,) if link else (),
            recorder=self._recorder,
            propagate=self._propagate,
            tell_hidden=lambda faults, _judged: log.warn_of(faults),
        )
        if self._presence:
            self._presence.begin(judge, has_login=has_login)
        return judge

    def know(self, snapshot: Snapshot) -> None:
        """Take note of the tools, for who asks what runs."""
        if self._presence:
            self._presence.know(snapshot)

    def warn(self) -> None:
        """Print the warnings that need no tool list."""
        from mcp_tool_filter.core.process.sentences import warnings_about

        for warning in warnings_about(self.config):
            say_beside_client(warning)

    def report(self, who: Introduction, snapshot: Snapshot, rules: RulesInForce | None) -> None:
        """Report the exposed and hidden tools on one line, and warnings below it: clients show
        stderr as errors."""
        from mcp_tool_filter.core.process import sentences

        more = sentences.lines_about_rules(rules.names if rules else ())
        is_long = self.settings.verbosity > 0
        render = sentences.render_report if is_long else sentences.render_line
        report = render(who, snapshot, more)
        if said := sentences.only_warnings(report) if self.settings.is_quiet else report:
            say_beside_client(said)

    def end(self) -> None:
        """Write what has not been written yet."""
        self._ends.close()


_UNLISTED = 1.0  # seconds from the start until the client has asked for the tools, or will not yet
_PAUSE = 0.05  # seconds in which the client gets the list


class _Presence:
    """Lets ``status`` and pages find this session, but only once it has started: that takes
    imports."""

    def __init__(self, settings: Settings, audit_log: Callable[[], str | None]) -> None:
        self._settings, self._audit_log = settings, audit_log
        self._started = time.time()
        self._early: list[Judged] = []
        self.note: Observer = self._early.append
        self._snapshot: Snapshot | None = None
        self._listed = Event()
        self._lock = Lock()
        self._is_over = False
        self._close: Callable[[], None] = lambda: None

    def know(self, snapshot: Snapshot) -> None:
        """Take note of the tools."""
        self._snapshot = snapshot
        self._listed.set()

    def begin(self, judge: LineJudge, *, has_login: bool) -> None:
        Thread(target=self._announce, args=(judge, has_login), daemon=True).start()

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            self._close()

    def _announce(self, judge: LineJudge, has_login: bool) -> None:
        self._listed.wait(_UNLISTED)
        time.sleep(_PAUSE)
        from mcp_tool_filter.core.process.statistics import Statistics
        from mcp_tool_filter.rooms.status.running import (
            announce,
            describe_filter,
            describe_server,
        )

        settings, counted = self._settings, Statistics()
        self.note = lambda judged: counted.note(judged, time.time())
        while self._early:
            self.note(self._early.pop(0))

        def answer() -> dict[str, object]:
            server = describe_server(
                settings.name or None,
                settings.shown_upstream,
                self._snapshot,
                counted,
                server=judge.server.name,
                listens_at="stdio",
                has_login=has_login,
                config=settings.config(),
            )
            log = self._audit_log()
            return describe_filter([server], started=self._started, audit_log=log)

        with self._lock:
            if not self._is_over and (announced := announce(answer)):
                self._close = announced.close


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
    child = Child(settings.command, env=settings.env, cwd=settings.cwd)

    from mcp_tool_filter.rooms.stdio.relay import Relay, RelayedLines  # while it starts

    report = _report_of(settings, session, child, rules)
    deciding = link = None
    if rules:
        from mcp_tool_filter.rooms.rules.credentials import credentials_of_command
        from mcp_tool_filter.rooms.stdio.waiting import DecidingThread

        operator = credentials_of_command(settings.env, settings.cwd)
        deciding = DecidingThread(rules)
        link = rules.link(settings.upstream, lambda: operator)
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
    relay = Relay(lines, stdin=session.stdin)
    session.is_ready = True
    status = relay.run()
    lines.close()
    return status


def _report_of(
    settings: Settings, session: StdioSession, child: Child, rules: RulesInForce | None
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
