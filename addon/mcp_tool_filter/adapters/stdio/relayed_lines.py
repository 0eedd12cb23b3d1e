"""Judge the lines of both sides of a relay, and write each where its verdict sends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, assert_never

from mcp_tool_filter.adapters.stdio.child import Child, write_all
from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.adapters.stdio.show import show_stray_line
from mcp_tool_filter.policy.effects import Deciding, Decision, waits
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine

if TYPE_CHECKING:  # most relays have no rules
    from mcp_tool_filter.adapters.stdio.rule_thread import RuleThread

CLIENT, CHILD = "client", "child"  # the side whose message waits


class RelayedLines:
    """One thread calls ``from_client``, another ``from_child``; both write to the client."""

    def __init__(
        self,
        child: Child,
        judge: LineJudge,
        *,
        say: Callable[[str], None],
        limits: Limits,
        stdout: int,
        rules: RuleThread | None,
        on_client_gone: Callable[[], None],
    ) -> None:
        self._child = child
        self._judge = judge
        self._say = say
        self._limits = limits
        self._stdout = stdout
        self._rules = rules
        self._on_client_gone = on_client_gone
        self._to_client = Lock()
        self.is_writing = False
        """True while output of the child is being written to the client."""

    def from_client(self, lines: Iterable[bytes | CutLine]) -> None:
        forwarded: list[bytes] = []
        replies: list[bytes] = []
        for line in lines:
            decision = self._decide(partial(self._judge.from_client, line))
            if waits(decision):
                self._decide_later(CLIENT, decision, partial(self._decided_for_client, line))
                continue
            self._sort_from_client(line, decision, forwarded, replies)
        self._pass_from_client(forwarded, replies)

    def _decided_for_client(self, line: bytes | CutLine, made: Verdict | Exception) -> None:
        forwarded: list[bytes] = []
        replies: list[bytes] = []
        verdict = self._judge.refuse_bug(line, made) if isinstance(made, Exception) else made
        self._sort_from_client(line, verdict, forwarded, replies)
        self._pass_from_client(forwarded, replies)

    def _sort_from_client(
        self,
        line: bytes | CutLine,
        verdict: Verdict,
        forwarded: list[bytes],
        replies: list[bytes],
    ) -> None:
        match verdict:
            case Forward():
                assert isinstance(line, bytes)
                forwarded.append(line)
            case Rewrite(text, _, owed):
                forwarded.append(text)
                replies += owed
            case Reply(text):
                replies.append(text)
            case Drop():
                pass
            case unexpected:
                assert_never(unexpected)

    def _pass_from_client(self, forwarded: list[bytes], replies: list[bytes]) -> None:
        if forwarded:
            self._child.write(_joined(forwarded))
        if replies:
            self.tell_client(replies)

    def from_child(self, lines: Iterable[bytes | CutLine]) -> None:
        passed: list[bytes] = []
        for line in lines:
            decision = self._decide(partial(self._judge.from_upstream, line))
            if waits(decision):
                self._decide_later(CHILD, decision, partial(self._decided_for_child, line))
                continue
            self._sort_from_child(line, decision, passed)
        self._pass_from_child(passed)

    def _decided_for_child(self, line: bytes | CutLine, made: Verdict | Exception) -> None:
        passed: list[bytes] = []
        verdict = self._judge.replace_bug(line, made) if isinstance(made, Exception) else made
        self._sort_from_child(line, verdict, passed)
        self._pass_from_child(passed)

    def _sort_from_child(
        self, line: bytes | CutLine, verdict: Verdict, passed: list[bytes]
    ) -> None:
        match verdict:
            case Forward():
                assert isinstance(line, bytes)
                passed.append(line)
            case Rewrite(text, _, owed, to_upstream):
                passed += [text, *owed]
                if to_upstream:
                    self._child.write(_joined(list(to_upstream)))
            case Reply(text):
                self._child.write(_joined([text]))
            case Drop():
                self._show(line)
            case unexpected:
                assert_never(unexpected)

    def _decide(self, work: Callable[[], Decision[Verdict]]) -> Decision[Verdict]:
        """Decide here, or in the thread of the rules."""
        return self._rules.do(work) if self._rules else work()

    def _decide_later(
        self, side: str, deciding: Deciding[Verdict], done: Callable[[Verdict | Exception], None]
    ) -> None:
        assert self._rules, "only rules wait"
        self._rules.decide_later(side, deciding, done)

    def _pass_from_child(self, passed: list[bytes]) -> None:
        if passed:
            self.is_writing = True
            self.tell_client(passed)
            self.is_writing = False

    def tell_client(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            with self._to_client:
                write_all(self._stdout, _joined(lines))
        except OSError:  # the client does not read any more
            self._on_client_gone()

    def _show(self, line: bytes | CutLine) -> None:
        """Show lines that a command prints between its messages."""
        if isinstance(line, bytes):
            show_stray_line(line, self._limits, self._say)


def _joined(lines: list[bytes]) -> bytes:
    lines.append(b"")
    return b"\n".join(lines)
