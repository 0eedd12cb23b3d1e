"""Judge each line of a stdio session, in both directions.

``conversation`` judges the messages. The client and the upstream are read by separate threads; a
lock lets them take turns.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import RLock
from typing import TYPE_CHECKING, assert_never, cast

from mcp_tool_filter.core.conversation.conversation import Conversation, Exchanges
from mcp_tool_filter.core.conversation.kinds import Kind
from mcp_tool_filter.core.conversation.memory import unlisted
from mcp_tool_filter.core.conversation.policy_in_force import (
    LOST_ANSWER,
    Arrival,
    Judged,
    Observer,
    PolicyInForce,
    Propagate,
    TellHidden,
    oversized,
)
from mcp_tool_filter.core.errors import ProtocolError, printable
from mcp_tool_filter.core.messages.limits import MEBIBYTE, Limits, OverLimit
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    Message,
    Notification,
    Request,
    Response,
    parse_message,
    render_error,
)
from mcp_tool_filter.core.messages.scan import scan
from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.policy.chain import refusal
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import (
    CannotList,
    Deciding,
    Decision,
    Effect,
    FetchTools,
    then,
)
from mcp_tool_filter.core.policy.situation import Client, Direction, Link, Session, Via
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.rooms.stdio.lines import CutLine, ids_answered, ids_in_cut, refuse_hidden_line
from mcp_tool_filter.rooms.stdio.only_kinds import OnlyKinds

if TYPE_CHECKING:  # few sessions are recorded
    from mcp_tool_filter.rooms.recordings.line_recorder import LineRecorder

_OUR_FAULT = "Internal error"
_MOST_SHOWN = 2000  # bytes of a line that is no message
_MOST_WAITING = 100_000  # requests; there is only one client, and it learns of a loss
_MOST_WAITING_BYTES = 16 * MEBIBYTE

type Note = Callable[[bytes, Verdict], None]
type OnBug = Callable[[bytes | CutLine, Exception], Judged]


@dataclass(frozen=True, slots=True)
class ServerName:
    """What the upstream calls itself, and the revision it speaks."""

    name: str = ""
    revision: str = ""


class LineJudge:
    """Judges the lines of one session."""

    restores_ids = False
    """True if an answer gets its request's id as the client wrote it."""

    def __init__(
        self,
        config: Config,
        *,
        observe: Observer,
        on_listed: Callable[[Snapshot], None],
        links: tuple[Link, ...] = (),
        recorder: LineRecorder | None = None,
        propagate: Propagate | None = None,
        tell_hidden: TellHidden | None = None,
    ) -> None:
        """``links`` come after the tool filter."""
        self._observe = observe
        self._note_client: Note = recorder.from_client if recorder else lambda *_: None
        self._note_upstream: Note = recorder.from_upstream if recorder else lambda *_: None
        self._limits = config.limits
        self._kinds = OnlyKinds(config, on_listed)
        policy = PolicyInForce(
            config=config,
            fetched=unlisted(""),
            observe=self._observed,
            clock=time.monotonic,
            links=links,
            propagate=propagate,
            reads_in_steps=False,  # no other client waits to be served
        )
        policy.kinds = self._kinds
        if tell_hidden is not None:
            policy.tell_hidden = tell_hidden
        self._session = Session(started=time.monotonic())
        self._exchanges = Exchanges(most=_MOST_WAITING, most_bytes=_MOST_WAITING_BYTES)
        client = Client(Via.STDIO, self._session)
        self.policy = policy
        self._conversation = Conversation(policy, client, self._exchanges)
        self._lock = RLock()
        self.server = ServerName()
        self.asker = ListAsker(config.tool_list_timeout, config.limits)

    def adopt(self, config: Config) -> list[bytes]:
        """Use another configuration; return what tells the client that its list has changed."""
        with self._lock:
            self.policy.adopt(config)
            return self._conversation.list_changed_notices(in_session=True)

    # What the client says

    def from_client(self, line: bytes | CutLine) -> Decision[Verdict]:
        """Decide on a line from the client; what must not pass is refused, whatever it is."""
        return self._judge(line, self._judge_from_client, self._refuse_bug, self._note_client)

    def _judge_from_client(self, line: bytes | CutLine) -> Decision[Judged]:
        if isinstance(line, CutLine):
            detail = f"a line of {line.size} bytes"
            verdict = oversized(line.beginning, detail, ids_in_cut(line))
            return self._conversation.refuse_from_client(verdict, line.size)
        return self._conversation.from_client(line, arrival=_LINE)

    def _refuse_bug(self, line: bytes | CutLine, bug: Exception) -> Judged:
        """Refuse a client's line after our own code has raised."""
        limits, raw = self._limits, _text(line)
        verdict = refusal(raw, Why.MALFORMED, INTERNAL_ERROR, _OUR_FAULT, limits, detail=repr(bug))
        return self._conversation.refuse_from_client(verdict, len(raw))

    # Lines of the upstream

    def from_upstream(self, line: bytes | CutLine) -> Decision[Verdict]:
        """Decide on a line from the upstream; an error replaces an answer that must not pass."""
        if self.asker.takes(line):
            return Drop(Reason(Why.HIDDEN))
        return self._judge(line, self._judge_from_upstream, self._replace, self._note_upstream)

    def _judge_from_upstream(self, line: bytes | CutLine) -> Decision[Judged]:
        if isinstance(line, CutLine):
            return self._replace(line, f"a line of {line.size} bytes")
        try:
            refuse_hidden_line(line)
            return self._conversation.from_upstream(line)
        except ProtocolError as error:
            return self._replace(line, str(error))

    def _replace(self, line: bytes | CutLine, why: Exception | str) -> Judged:
        """Answer the requests that a broken line may answer with errors."""
        ids = ids_answered(line)
        if ids is not None:
            taken = self._exchanges.take(ids)
        else:
            taken = self._exchanges.take_all() if len(self._exchanges) == 1 else []
        return self._conversation.fail(taken, why if isinstance(why, str) else repr(why))

    def _judge(
        self,
        line: bytes | CutLine,
        judge: Callable[[bytes | CutLine], Decision[Judged]],
        on_bug: OnBug,
        note: Note,
    ) -> Decision[Verdict]:
        with self._lock:
            try:
                judged = judge(line)
            except Exception as bug:
                judged = on_bug(line, bug)
            if isinstance(judged, Judged):
                return self._noted(note, line, judged)
            waiting = self._in_turns(judged, partial(on_bug, line))
            return then(waiting, partial(self._noted, note, line))

    def _noted(self, note: Note, line: bytes | CutLine, judged: Judged) -> Verdict:
        verdict = _on_one_line(judged.verdict)
        if self.restores_ids and isinstance(judged.message, Response) and judged.exchange:
            verdict = _with_id(verdict, line, judged.message.id, judged.exchange.id)
        note(_text(line), verdict)
        return verdict

    def _in_turns(
        self, deciding: Deciding[Judged], on_bug: Callable[[Exception], Judged]
    ) -> Deciding[Judged]:
        """Hold the lock while a decision runs, but not while it waits; it never raises."""
        go_on: Callable[[], Effect] = partial(next, deciding)
        while True:
            with self._lock:
                try:
                    effect = go_on()
                except StopIteration as made:
                    return cast("Judged", made.value)
                except Exception as bug:
                    return on_bug(bug)
            try:
                go_on = partial(deciding.send, (yield effect))
            except GeneratorExit:
                deciding.close()
                raise
            except BaseException as error:  # the effect's failure, for the decision
                go_on = partial(deciding.throw, error)

    def _observed(self, judged: Judged) -> None:
        """Learn the upstream's name and revision from its answer."""
        if judged.direction is Direction.FROM_UPSTREAM:
            for one in judged.members or (judged,):
                method = one.exchange.method if one.exchange else None
                if method in ("initialize", "server/discover"):
                    self._learn(one.message)
        self._observe(judged)

    def _learn(self, answer: Message | None) -> None:
        if isinstance(answer, Response) and answer.result is not None:
            self.server = _server_in(answer, self.server)
            self._session.revision = self.server.revision or None
            self._kinds.only.agree_on(self.server.revision)

    # The list, if a call needs it

    def fetch_list(self, effect: FetchTools) -> tuple[bytes, ...]:
        """Return all pages of the tool list, or nothing if it is known. Raises CannotList."""
        if isinstance(effect.kind, Kind) and not effect.kind.lacks_list:
            return ()
        return self.asker.ask(cast("Request | Notification", effect.message))

    # Waiting requests

    def waits_for(self, ids: Sequence[str]) -> bool:
        """Tell whether any of these requests has no answer yet."""
        with self._lock:
            return any(self._exchanges.answered_by(Response(id)) is not None for id in ids)

    def methods_in_flight(self) -> list[str]:
        """Return the methods of all waiting requests."""
        with self._lock:
            return list(self._exchanges.methods)

    def answer_instead(self, ids: Sequence[str], code: int, text: str) -> list[bytes]:
        """Return an error for each of these requests that still waits."""
        with self._lock:
            return [render_error(id, code, text) for id in self._exchanges.take(list(ids))]

    def forget(self, ids: Sequence[str]) -> None:
        """Forget requests that nobody waits for any more."""
        with self._lock:
            self._exchanges.take(list(ids))

    def lost_replies(self, *, besides: Collection[str] = ()) -> list[bytes]:
        """Return an error for each waiting request, except for these methods."""
        with self._lock:
            return self._conversation.lose(besides=besides)


_OF_MCP = "io.modelcontextprotocol/"
_MOST_BYTES = 80 * MEBIBYTE


_LOST = Response(None)
"""In place of an answer that will never come."""


class ListAsker:
    """Asks the upstream for the tool list of its client, under ids of ours. The client never sees
    the answers."""

    def __init__(self, timeout: float, limits: Limits) -> None:
        self.send: Callable[[bytes], object] | None = None
        """Sends a message to the upstream; any thread may call it."""
        self._timeout = timeout
        self._limits = limits
        self._prefix = b""  # of our ids, once there are any
        self._asked = ""
        self._answers: SimpleQueue[Response | None] = SimpleQueue()
        self._is_lost = False

    def ask(self, message: Request | Notification) -> tuple[bytes, ...]:
        """Return all pages of the list that the sender of this message would get. It blocks.
        Raises CannotList."""
        if self.send is None:
            raise CannotList("nobody here asks upstreams")
        prefix = f"mcp-tool-filter-{os.urandom(8).hex()}-"
        self._prefix, end = prefix.encode(), time.monotonic() + self._timeout
        about, pages, cursors = _about_client(message), list[bytes](), [""]
        while True:
            self._asked, self._answers = f'"{prefix}{len(pages)}"', SimpleQueue()
            if self._is_lost:
                self._answers.put(_LOST)
            params = ",".join(filter(None, (about, cursors[-1])))
            asked = f'{{"jsonrpc":"2.0","id":{self._asked},"method":"tools/list"'
            self.send(f'{asked},"params":{{{params}}}}}'.encode())
            try:
                answer = self._answers.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                raise CannotList("it took too long") from None
            if answer is _LOST:
                raise CannotList(LOST_ANSWER, is_lost=True)
            if answer is None or answer.result is None:
                raise CannotList("the upstream did not list its tools")
            pages.append(answer.place.raw)
            following = answer.result.get("nextCursor")
            if following is None or not following.text:
                return tuple(pages)
            cursor = f'"cursor":{answer.place.cut(following)}'
            too_many = len(pages) == MANY or sum(map(len, pages)) > _MOST_BYTES
            if too_many or cursor in cursors:
                raise CannotList("the tool list never ends")
            cursors.append(cursor)

    def takes(self, line: bytes | CutLine) -> bool:
        """Tell whether a line answers a request of ours; if so, nobody else may see it."""
        if not self._prefix or isinstance(line, CutLine) or self._prefix not in line:
            return False
        try:
            answer = parse_message(line, self._limits)
        except ProtocolError:
            return False
        if not isinstance(answer, Response) or self._prefix.decode() not in (answer.id or ""):
            return False
        if answer.id == self._asked:
            self._asked = ""
            self._answers.put(answer)
        return True

    def waits_for(self, ids: Sequence[str]) -> bool:
        """Tell whether one of these requests is ours and has no answer yet."""
        return self._asked in ids

    def give_up(self, ids: Sequence[str] | None = None, *, is_lost: bool = True) -> None:
        """Expect no answer to these requests any more; None means to any, now and later."""
        self._is_lost = self._is_lost or ids is None
        if ids is None or self._asked in ids:
            self._answers.put(_LOST if is_lost else None)


def _about_client(message: Request | Notification) -> str:
    """Return what a request's ``_meta`` says of its client, for a request of ours."""
    meta = message.params.get("_meta") if message.params else None
    said = [one for one in (meta.members if meta else None) or () if one.key.startswith(_OF_MCP)]
    text = ",".join(message.place.text[one.start : one.value.end] for one in said)
    return f'"_meta":{{{text}}}' if text else ""


class _Line(Arrival):
    """Refuses a line that is two lines to Python servers."""

    __slots__ = ()

    @property
    def can_list(self) -> bool:
        return True

    def problem_in(self, message: Message, raw: bytes, limits: Limits) -> Reply | None:
        try:
            refuse_hidden_line(raw)
        except ProtocolError as error:
            return refusal(raw, Why.MALFORMED, limits=limits, detail=str(error))
        return None


_LINE = _Line()


def routes(
    line: bytes | CutLine, verdict: Verdict, *, from_client: bool
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return what passes on to the other side, and what goes back to the side it came from."""
    match verdict:
        case Forward():
            assert isinstance(line, bytes)
            return (line,), ()
        case Rewrite(text, _, owed, to_upstream):
            return ((text,), owed) if from_client else ((text, *owed), to_upstream)
        case Reply(text):
            return (), (text,)
        case Drop():
            return (), ()
        case unexpected:
            assert_never(unexpected)


def cancelled_by(message: Message) -> str | None:
    """Return the id of the request that a notification cancels."""
    if not isinstance(message, Notification) or message.method != "notifications/cancelled":
        return None
    named = message.params.get("requestId") if message.params else None
    return message.place.cut(named) if named else None


def is_answer(line: bytes | CutLine, limits: Limits) -> bool:
    """Tell whether a line is an answer. The client's need not wait for its requests before them:
    the upstream may need them before it can list its tools."""
    try:
        return not isinstance(line, CutLine) and isinstance(parse_message(line, limits), Response)
    except ProtocolError:
        return False


def _with_id(verdict: Verdict, line: bytes | CutLine, id: str | None, asked: str | None) -> Verdict:
    """Write an answer's id as in its request: a server may answer 1.50 with 1.5."""
    if id == asked or asked is None or not isinstance(verdict, Forward | Rewrite):
        return verdict
    answer = _text(line) if isinstance(verdict, Forward) else verdict.text
    text, root = scan(answer, {}, Limits(message=max(1, len(answer))))
    written = root.get("id")
    if written is None or text[written.start : written.end] != id:
        return verdict  # our own answer instead
    restored = f"{text[: written.start]}{asked}{text[written.end :]}".encode()
    if isinstance(verdict, Forward):
        return Rewrite(restored, Reason(Why.CHANGED))
    return replace(verdict, text=restored)


def _on_one_line(verdict: Verdict) -> Verdict:
    """Put each of our own messages on one line: a rule's script may write several."""
    match verdict:
        case Rewrite(text, _, owed, to_upstream):
            if any(b"\n" in one or b"\r" in one for one in (text, *owed, *to_upstream)):
                return replace(
                    verdict,
                    text=without_line_ends(text),
                    owed=tuple(map(without_line_ends, owed)),
                    to_upstream=tuple(map(without_line_ends, to_upstream)),
                )
        case Reply(text) if b"\n" in text or b"\r" in text:
            return replace(verdict, text=without_line_ends(text))
    return verdict


def without_line_ends(message: bytes) -> bytes:
    """Return a valid message on one line: in JSON, a line end is only white space."""
    return message.replace(b"\r", b" ").replace(b"\n", b" ")


def _text(line: bytes | CutLine) -> bytes:
    return line if isinstance(line, bytes) else line.beginning


def _server_in(response: Response, before: ServerName) -> ServerName:
    """Read the upstream's name and version, which are free text."""
    assert response.result is not None
    try:
        result = json.loads(response.place.cut(response.result))
    except (ValueError, RecursionError):
        return before
    if not isinstance(result, dict):
        return before
    meta = result.get("_meta")
    info = result.get("serverInfo") or (
        meta.get("io.modelcontextprotocol/serverInfo") if isinstance(meta, dict) else None
    )
    named = info if isinstance(info, dict) else {}
    words = [str(named[key]) for key in ("name", "version") if key in named]
    several = result.get("supportedVersions")
    revisions = [result.get("protocolVersion"), *(several if isinstance(several, list) else ())]
    known = [shown(text) for text in revisions if isinstance(text, str)]
    return ServerName(shown(" ".join(words)), max(known, default=before.revision))


def show_stray_line(line: bytes, limits: Limits, say: Callable[[str], None]) -> bool:
    """Show a line that is not JSON, with a mark; return False if it may be JSON."""
    try:
        scan(line, {}, limits)
    except OverLimit:  # it may be JSON; then a warning explains the problem
        return False
    except ProtocolError:
        text = line[:_MOST_SHOWN].decode("utf-8", "backslashreplace")
        more = "…" if len(line) > _MOST_SHOWN else ""
        say(f"[not JSON, from the command] {printable(text)}{more}")
        return b'"jsonrpc"' not in line
    return False
