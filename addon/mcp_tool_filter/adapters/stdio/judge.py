"""Decides on each line of a stdio session, in either direction, and remembers who waits.

The client and the upstream are each read by a thread of their own; a lock lets them take turns.
Until the client has listed all tools, names are judged by the patterns: nothing is ever asked of
the upstream that the client has not asked, so the client can find no trace of us.

It is one module because every decision reads and changes the same memory, under that lock.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import RLock
from typing import Protocol

from mcp_tool_filter.conversation.session import Envelopes, Exchanges, exchange_for
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.chain import (
    Link,
    Situation,
    decide_from_client,
    decide_from_upstream,
    join_from_client,
    join_from_upstream,
    keep_space,
    refusal,
)
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.effects import Decision, then, together
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange, Session, Via
from mcp_tool_filter.policy.list_from import ListFrom
from mcp_tool_filter.policy.snapshot import Snapshot, shown
from mcp_tool_filter.policy.unlisted import UnlistedTools
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import MEBIBYTE, Limits, OverLimit
from mcp_tool_filter.protocol.lines import CutLine, ids_in_cut, refuse_hidden_line
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    Batch,
    Message,
    Request,
    Response,
    Single,
    id_value,
    ids_guessed_in,
    ids_in,
    parse_message,
    render_error,
    singles,
)
from mcp_tool_filter.protocol.tools import (
    Listing,
    parse_listing,
)

LOST_ANSWER = "Upstream connection lost"
INVALID_ANSWER = "The server sent an invalid response"
_OUR_FAULT = "Internal error"
_DEEPEST_READ = 5000  # levels, to find the id of a message that is too deep
_MOST_WAITING = (
    100_000  # requests; here is only one client, and it is told when the command is lost
)
_MOST_WAITING_BYTES = 16 * MEBIBYTE
_MOST_LISTS = 1000  # requests for a list that are remembered until they are answered

type Watcher = Callable[[Message | None, Verdict], None]
type Observe = Callable[
    [Direction, Single, Verdict, Client, Snapshot, Exchange | None, int], object
]
"""Told of each message with what was decided, by what, and the exchange that it belongs to."""


type Note = Callable[[bytes, Verdict], None]


class Recorder(Protocol):
    """Notes each line and what became of it."""

    def from_client(self, line: bytes, verdict: Verdict) -> None: ...

    def from_upstream(self, line: bytes, verdict: Verdict) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerName:
    """What the upstream calls itself, and the revision it speaks."""

    name: str = ""
    revision: str = ""


@dataclass(slots=True)
class _PageAsked:
    """A tools/list that waits for its answer."""

    cursor: str | None


class LineJudge:
    """One for each session."""

    def __init__(
        self,
        config: Config,
        *,
        watch: Watcher,
        on_listed: Callable[[Snapshot], None],
        links: tuple[Link, ...] = (),
        now: float = 0.0,
        recorder: Recorder | None = None,
        observe: Observe | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``links`` come after the tool filter; the session begins ``now``."""
        self._observe = observe
        self._clock = clock
        self._links = links
        self._client = Client(Via.STDIO, Session(started=now)) if links else None
        self._config = config
        self._limits = config.limits
        self._watch = watch
        self._on_listed = on_listed
        self._recorder = recorder
        self._exchanges = Exchanges(most=_MOST_WAITING, most_bytes=_MOST_WAITING_BYTES)
        self._pages_asked: OrderedDict[str, _PageAsked] = OrderedDict()
        self._unlisted: UnlistedTools | None = UnlistedTools(config.deny, config.allow)
        self._snapshot = self._unlisted.snapshot
        self._envelopes = Envelopes()
        self._lock = RLock()
        self.server = ServerName()

    # What the client says

    def from_client(self, line: bytes | CutLine) -> Decision[Verdict]:
        """Decide on a line from the client; what must not pass is refused, whatever it is."""
        with self._lock:
            decision = self._from_client(line)
            if self._recorder:
                note = self._recorder.from_client
                return then(decision, partial(self._noted, note, _text(line)))
            return decision

    def from_upstream(self, line: bytes | CutLine) -> Decision[Verdict]:
        """Decide on a line from the upstream; an error replaces an answer that must not pass."""
        with self._lock:
            decision = self._from_upstream(line)
            if self._recorder:
                note = self._recorder.from_upstream
                return then(decision, partial(self._noted, note, _text(line)))
            return decision

    def _noted(self, note: Note, line: bytes, verdict: Verdict) -> Verdict:
        note(line, verdict)
        return verdict

    def _from_client(self, line: bytes | CutLine) -> Decision[Verdict]:
        try:
            if isinstance(line, CutLine):
                return self._refuse_cut(line)
            return self._decide_for_client(line)
        except OverLimit as error:
            return self._refuse_oversized(line, str(error))
        except ProtocolError:
            verdict = refusal(_text(line), Why.MALFORMED, limits=self._limits)
            self._watch(None, verdict)
            return verdict
        except Exception as bug:
            return self.refuse_bug(line, bug)

    def _decide_for_client(self, line: bytes) -> Decision[Verdict]:
        refuse_hidden_line(line)
        message = parse_message(line, self._limits)
        now = self._clock() if self._observe else 0.0
        begun = [
            exchange_for(one, one.place.end - one.place.start, now) for one in singles(message)
        ]
        decisions = [
            decide_from_client(one, self._situation(exchange))
            for one, exchange in zip(singles(message), begun, strict=True)
        ]
        return together(decisions, partial(self._settle_for_client, message, begun))

    def _settle_for_client(
        self, message: Message, begun: Sequence[Exchange | None], verdicts: list[Verdict]
    ) -> Verdict:
        verdict = verdicts[0]
        if isinstance(message, Batch):
            verdict = join_from_client(message, verdicts)
        with self._lock:
            self._watch(message, verdict)
            if self._observe:
                self._tell(Direction.FROM_CLIENT, message, begun, verdicts)
            match verdict:
                case Forward():
                    self._note_asked(message, begun)
                case Rewrite(text):
                    self._note_asked(parse_message(text, self._limits), begun)
        return verdict

    def _tell(
        self,
        direction: Direction,
        message: Message,
        exchanges: Sequence[Exchange | None],
        verdicts: Sequence[Verdict],
    ) -> None:
        """Tell the observer of each message, together with its exchange."""
        assert self._observe
        client = self._client or Client(Via.STDIO, said_revision=self.server.revision or None)
        for one, exchange, verdict in zip(singles(message), exchanges, verdicts, strict=True):
            size = one.place.end - one.place.start
            self._observe(direction, one, verdict, client, self._snapshot, exchange, size)

    def _situation(self, exchange: Exchange | None) -> Situation:
        situation = Situation(
            snapshot=self._snapshot,
            list_from=ListFrom.UPSTREAM,
            client=self._client,
            exchange=exchange,
            links=self._links,
            limits=self._limits,
        )
        if self._config.tools_list is ListFrom.CACHE and self._unlisted is None:
            situation.list_from = ListFrom.CACHE
            situation.envelope = self._envelopes.get(self.server.revision)
        return situation

    def _note_asked(self, message: Message, begun: Sequence[Exchange | None]) -> None:
        known = {id_value(one.id): one for one in begun if one is not None and one.id is not None}
        for one in singles(message):
            if isinstance(one, Request) and (exchange := known.get(id_value(one.id))):
                self._exchanges.open(exchange)
        if self._unlisted is None:
            return
        for one in singles(message):
            if isinstance(one, Request) and one.method == "tools/list":
                cursor = one.params.get("cursor") if one.params else None
                text = cursor.text if cursor else None
                if cursor and text is None and one.place.cut(cursor) != "null":
                    continue  # no cursor that an upstream gave
                self._pages_asked[id_value(one.id)] = _PageAsked(text)
        while len(self._pages_asked) > _MOST_LISTS:
            self._pages_asked.popitem(last=False)

    def _refuse_cut(self, line: CutLine) -> Verdict:
        return self._too_large(ids_in_cut(line), f"a line of {line.size} bytes")

    def _refuse_oversized(self, line: bytes | CutLine, detail: str) -> Verdict:
        raw = _text(line)
        anything = Limits(message=max(1, len(raw)), depth=_DEEPEST_READ)
        ids = ids_in(raw, anything) or list(dict.fromkeys(ids_guessed_in(raw)))
        return self._too_large(ids, detail)

    def _too_large(self, ids: list[str], detail: str) -> Verdict:
        text = f"Request too large: {detail}"
        id = ids[0] if len(ids) == 1 else None
        verdict = Reply(render_error(id, INVALID_REQUEST, text), Reason(Why.OVERSIZED, detail=text))
        self._watch(None, verdict)
        return verdict

    def refuse_bug(self, line: bytes | CutLine, bug: Exception) -> Verdict:
        """Refuse a client's line over which our own code has raised."""
        verdict = refusal(
            _text(line), Why.MALFORMED, INTERNAL_ERROR, _OUR_FAULT, limits=self._limits
        )
        self._watch(None, Reply(verdict.text, Reason(Why.MALFORMED, detail=repr(bug))))
        return verdict

    # What the upstream says

    def _from_upstream(self, line: bytes | CutLine) -> Decision[Verdict]:
        try:
            if isinstance(line, CutLine):
                return self._replace_cut(line)
            return self._decide_for_upstream(line)
        except OverLimit as error:
            raw = _text(line)
            return self._replace(ids_guessed_in(raw), str(error), is_cut=True)
        except ProtocolError as error:
            return self._replace(_ids_if_message(_text(line)), str(error))
        except Exception as bug:
            return self.replace_bug(line, bug)

    def _decide_for_upstream(self, line: bytes) -> Decision[Verdict]:
        refuse_hidden_line(line)
        message = parse_message(line, self._limits)
        snapshot = self._snapshot_for(message)
        decisions = [
            decide_from_upstream(
                one,
                Situation(
                    snapshot=snapshot,
                    direction=Direction.FROM_UPSTREAM,
                    client=self._client,
                    exchange=self._exchanges.answered_by(one),
                    links=self._links,
                    limits=self._limits,
                ),
            )
            for one in singles(message)
        ]
        return together(decisions, partial(self._settle_for_upstream, message))

    def _settle_for_upstream(self, message: Message, verdicts: list[Verdict]) -> Verdict:
        if isinstance(message, Batch):
            verdict = join_from_upstream(message, verdicts)
        else:
            verdict = keep_space(message.place.text, verdicts[0])
        with self._lock:
            self._watch(message, verdict)
            if self._observe:
                asked = [self._exchanges.answered_by(one) for one in singles(message)]
                self._tell(Direction.FROM_UPSTREAM, message, asked, verdicts)
            if not isinstance(message, Response) or message.result is not None:
                self._learn(message)
            for one in singles(message):
                self._exchanges.close(one)
        return verdict

    def _snapshot_for(self, message: Message) -> Snapshot:
        """Return what a message from the upstream is judged against."""
        if self._unlisted is None:
            return self._snapshot
        pages = list(self._pages_in(message))
        if not pages:
            return self._snapshot
        definitions = tuple(one for _, page in pages for one in page.definitions)
        first = pages[0][1]
        return self._unlisted.judge_page(
            Listing(definitions, None, first.frame, first.head, first.tail)
        )

    def _pages_in(self, message: Message) -> Iterator[tuple[Response | None, Listing]]:
        for one in singles(message):
            if isinstance(one, Request) and one.method == "sampling/createMessage":
                continue  # its tools are the model's, for that one request
            try:
                listing = parse_listing(one)
            except ProtocolError:
                continue  # the decision says whether it matters
            if listing and any(each.is_like_a_tool for each in listing.definitions):
                yield (one if isinstance(one, Response) else None), listing
            elif listing and isinstance(one, Response):
                yield one, listing

    def _learn(self, message: Message) -> None:
        """Keep what an answer says of the upstream and of its tools."""
        for one in singles(message):
            if not isinstance(one, Response) or one.id is None:
                continue
            asked = self._exchanges.answered_by(one)
            method = asked.method if asked else None
            if method in ("initialize", "server/discover") and one.result is not None:
                self.server = _server_in(one, self.server)
            if method == "tools/list":
                self._learn_list(one)

    def _learn_list(self, response: Response) -> None:
        asked = self._pages_asked.pop(id_value(response.id or "null"), None)
        listing = parse_listing(response)
        if listing is None:
            return
        if asked and asked.cursor is None:
            self._envelopes.learn(self.server.revision, listing)
        if (
            asked
            and self._unlisted
            and (whole := self._unlisted.finish_page(asked.cursor, listing))
        ):
            # Denied by pattern: what the list lacks may still be shown elsewhere.
            self._snapshot = replace(whole, denied=self._snapshot.denied)
            self._unlisted = None
            self._pages_asked.clear()
            self._on_listed(whole)

    def _replace_cut(self, line: CutLine) -> Verdict:
        detail = f"a line of {line.size} bytes"
        return self._replace(ids_in_cut(line), detail, is_cut=True)

    def replace_bug(self, line: bytes | CutLine, bug: Exception) -> Verdict:
        """Replace an upstream's line over which our own code has raised."""
        with self._lock:
            return self._replace(ids_guessed_in(_text(line)), repr(bug))

    def _replace(self, ids: list[str], detail: str, *, is_cut: bool = False) -> Verdict:
        """Let an error stand for what cannot pass, if somebody waits for it."""
        waiting = self._exchanges.take(ids)
        if is_cut and not waiting and len(self._exchanges) == 1:
            waiting = self._exchanges.take_all()  # it can only have been for this one
        errors = [render_error(id, INTERNAL_ERROR, INVALID_ANSWER) for id in waiting]
        reason = Reason(Why.INVALID, detail=detail)
        verdict = Rewrite(errors[0], reason, tuple(errors[1:])) if errors else Drop(reason)
        self._watch(None, verdict)
        return verdict

    # Who waits

    def waits_for(self, ids: Sequence[str]) -> bool:
        """Tell whether any of these requests has no answer yet."""
        with self._lock:
            return any(self._exchanges.answered_by(Response(id)) is not None for id in ids)

    def methods_in_flight(self) -> list[str]:
        """Return the method of each request that has no answer yet."""
        with self._lock:
            return list(self._exchanges.methods)

    def answer_instead(self, ids: Sequence[str], code: int, text: str) -> list[bytes]:
        """Return an error for each of these requests that has no answer yet."""
        with self._lock:
            return [render_error(id, code, text) for id in self._exchanges.take(list(ids))]

    def lost_replies(self) -> list[bytes]:
        """Return what the clients get that still wait when the upstream is lost."""
        with self._lock:
            ids = self._exchanges.take_all()
            return [render_error(id, UPSTREAM_LOST, LOST_ANSWER) for id in ids]


def _text(line: bytes | CutLine) -> bytes:
    return line if isinstance(line, bytes) else line.beginning


def _ids_if_message(raw: bytes) -> list[str]:
    """Guess the ids of a broken message; a line of a log has none."""
    return ids_guessed_in(raw) if b'"jsonrpc"' in raw else []


def _server_in(response: Response, before: ServerName) -> ServerName:
    """Read what an upstream says of itself; all of it is free text."""
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
