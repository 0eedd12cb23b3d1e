"""The lane: the short way of the commonest exchange, a plain call of an allowed tool.

The idea: a call is plain if its bytes prove that there is nothing to judge but its name. It has the
members of the schema, each once and in the usual spelling, so every reader reads it as we do. Its
answer is plain in the same way, as JSON or as one event. The whole way would forward both
unchanged; so does the lane, and remembers only the id.

    a plain call ──► sent ──► a plain result ─────────────────────────► answered
                      │   └──► the head of a stream ──► one event ──► its end ──┘
                      └──► anything else: ``whole`` makes the exchange that it would have been, and
                           that one goes on: another answer, a loss, a client that leaves, somebody
                           who asks the service for its exchanges

``may_take`` is the one place that says whether anybody wants to see more than the lane shows. Hooks
and links declare that (``needs_messages``), and so do observers (``Watch``): the terminal's lines,
metrics and the page want only the tool, the times and the sizes of a plain call, and on a click its
bytes. They are told when it is sent, when it is answered, and when it becomes a whole exchange.

The proof by length: msgspec reads a call into the members of the schema and refuses any other. Of a
member that stands twice it returns the last. But the members that it returns, in their shortest
spelling, are as long as all bytes together: so nothing else is there, neither a second member nor a
key in another spelling.

A client without a session (2026-07-28) says with each call what it can and which program it is.
That is the same each time, so what it means is read by the code of the whole way, and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.declared import capabilities_in, program_in
from mcp_tool_filter.core.engine.exchange import Exchange, Phase, fields_of
from mcp_tool_filter.core.engine.service import Service
from mcp_tool_filter.core.engine.steps import Answer
from mcp_tool_filter.core.engine.streaming import open_stream
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.asked import HttpExchange
from mcp_tool_filter.core.messages.carried import may_carry
from mcp_tool_filter.core.messages.large import SIMPLE_ID
from mcp_tool_filter.core.messages.messages import Request, parse_message
from mcp_tool_filter.core.messages.skim import opens_more
from mcp_tool_filter.core.policy.situation import Client, RpcExchange, Via
from mcp_tool_filter.core.policy.snapshot import Standing

if TYPE_CHECKING:
    from mcp_tool_filter.core.conversation.kinds import Kind
    from mcp_tool_filter.core.conversation.policy_in_force import PlainObserver
    from mcp_tool_filter.core.engine.client_h1 import H1Client
    from mcp_tool_filter.core.engine.service import Address
    from mcp_tool_filter.core.engine.upstream import Upstream
    from mcp_tool_filter.core.engine.wire import AnswerHead, RequestHead
    from mcp_tool_filter.core.http.head import Fields

_MOST = 256 * 1024  # bytes: longer ones are rare, and the whole way takes hardly longer for them
_MOST_BRACKETS = 100  # so it nests less deeply than any limit that users may set
_FEWEST_LEVELS = _MOST_BRACKETS + 2
_ID = re.compile(SIMPLE_ID).fullmatch
_PROGRESS = re.compile(rb'"progressToken":(?:%b)' % SIMPLE_ID)
_NAME = re.compile(rb'"[!#-\[\]-~]{1,256}"').fullmatch  # ASCII without space, quote, backslash
_BRACKETS = (b"[", b"{")
_EVENT = re.compile(
    rb"(?:event: ?message\r?\n|id: ?[A-Za-z0-9_.:/+=-]{0,128}\r?\n){0,2}data: (?=\{)"
).match
"""An event up to its data, in the only usual spelling."""
_METHOD = "tools/call"
_JSON, _STREAM = "application/json", "text/event-stream"
_CALL = len('{"jsonrpc":"2.0","id":,"method":"tools/call","params":{"name":}}')
_ARGUMENTS, _META = len(',"arguments":'), len(',"_meta":')
_RESULT = frozenset({"content", "structuredContent", "isError", "resultType"})
_IN_META = frozenset(
    "io.modelcontextprotocol/" + name
    for name in ("protocolVersion", "clientInfo", "clientCapabilities", "logLevel")
)
_WITH_META = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":%b}}'
_LONGEST_META = 4096  # bytes

# What the bytes say


type Declared = tuple[str | None, str | None]
"""The capabilities and the program of the client, as a call says them."""


class CallRead(NamedTuple):
    """What a plain call says: its name alone is to be judged."""

    id: bytes
    tool: str
    meta: bytes = b""
    declared: Declared | None = None
    arguments: bytes = b""


@cache
def _readers() -> tuple[Callable[[bytes], Any], Callable[[Any], Any]] | None:
    """Return what reads a call, and the members of a result; None without msgspec."""
    try:
        import msgspec  # seldom needed before the first call
    except ImportError:
        return None
    raw: Any = msgspec.Raw
    params: Any = msgspec.defstruct(
        "Params",
        [("name", raw), ("arguments", raw, raw()), ("_meta", raw, raw())],
        forbid_unknown_fields=True,
    )
    members = [("jsonrpc", str), ("id", raw), ("method", str), ("params", params)]
    call = msgspec.defstruct("Call", members, forbid_unknown_fields=True)
    return msgspec.json.Decoder(call).decode, msgspec.json.Decoder(dict[str, raw]).decode


def plain_call(raw: bytes) -> CallRead | None:
    """Return the call if it is plain; None for anything that must be read as usual."""
    if len(raw) > _MOST or (readers := _readers()) is None:
        return None
    try:
        call = readers[0](raw)
        raw.decode()
    except (ValueError, RecursionError):
        return None
    params = call.params
    id, name = bytes(call.id), bytes(params.name)
    if call.jsonrpc != "2.0" or call.method != _METHOD or not _ID(id) or not _NAME(name):
        return None
    length = _CALL + len(id) + len(name)
    arguments, meta = bytes(params.arguments), bytes(params._meta)  # empty if there are none
    if arguments:
        length += _ARGUMENTS + len(arguments)
        if arguments[:1] != b"{" or opens_more(raw, _BRACKETS, 0, len(raw), _MOST_BRACKETS):
            return None
    declared = None
    if meta:
        length += _META + len(meta)
        meta = _without_progress(meta)
        declared = _declared_in(meta)
        if declared is None:
            return None
    if length != len(raw) and (meta or raw not in _spaced(id, name, arguments)):
        return None
    return CallRead(id, name[1:-1].decode(), meta, declared, arguments)


def _without_progress(meta: bytes) -> bytes:
    """Return a ``_meta`` without its first member, or its last one, if that is a plain token for
    progress: it is another one in each call."""
    if (found := _PROGRESS.search(meta)) is None:
        return meta
    start, end = found.span()
    if start == 1:
        return b"{" + meta[end:].removeprefix(b",")
    is_last = meta[start - 1 : start] == b"," and meta[end:] == b"}"
    return meta[: start - 1] + b"}" if is_last else meta


@lru_cache(maxsize=64)
def _declared_in(meta: bytes) -> Declared | None:
    """Return what a ``_meta`` says of the client; None if it may say more than that."""
    if meta == b"{}":
        return None, None
    if len(meta) > _LONGEST_META or b"\\" in meta or not meta.isascii():
        return None
    try:
        message = parse_message(_WITH_META % meta)
        if not isinstance(message, Request) or message.params is None or may_carry(message):
            return None
        members = message.params.named["_meta"].members
        keys = [one.key for one in members or ()]
        is_plain = members and len(keys) == len(set(keys)) and _IN_META.issuperset(keys)
        return (capabilities_in(message), program_in(message)) if is_plain else None
    except ProtocolError:
        return None


def _spaced(id: bytes, name: bytes, arguments: bytes) -> tuple[bytes, ...]:
    """Return the call as Python's json writes it, in the two usual orders."""
    call = b'"method": "tools/call", "params": {"name": %b, "arguments": %b}' % (name, arguments)
    begin = b'"jsonrpc": "2.0", "id": %b' % id
    return b"{%b, %b}" % (begin, call), b"{%b, %b}" % (call, begin)


def is_plain_result(raw: bytes, id: bytes) -> bool:
    """Tell whether this is the result of a call, with only the schema's members, each once."""
    for before, after in _around(id):
        if raw.startswith(before) and raw.endswith(after):
            break
    else:
        return False
    start, end = len(before) - 1, len(raw) - len(after) + 1
    if len(raw) > _MOST or (readers := _readers()) is None:
        return False
    try:
        members = readers[1](memoryview(raw)[start:end])
        raw.decode()
    except (ValueError, RecursionError):
        return False
    length = 1
    for key, value in members.items():
        length += len(key) + 4 + len(memoryview(value))
    return (
        (length == end - start or raw[start:end] == _spaced_object(members))
        and members.keys() <= _RESULT
        and bytes(members.get("isError", b"false")) == b"false"
        and bytes(members.get("resultType", b'"complete"')) == b'"complete"'
        and not opens_more(raw, _BRACKETS, 0, len(raw), _MOST_BRACKETS)
    )


def _around(id: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return what may stand around a result, with its brackets: the usual orders and spaces."""
    return (
        (b'{"jsonrpc":"2.0","id":%b,"result":{' % id, b"}}"),
        (b'{"result":{', b'},"jsonrpc":"2.0","id":%b}' % id),
        (b'{"jsonrpc": "2.0", "id": %b, "result": {' % id, b"}}"),
    )


def _spaced_object(members: Mapping[str, bytes]) -> bytes:
    """Return an object as Python's json writes it."""
    said = [b'"%b": %b' % (key.encode(), bytes(value)) for key, value in members.items()]
    return b"{%b}" % b", ".join(said)


def data_in(event: bytes) -> bytes:
    """Return the data of bytes that are exactly one event; empty if they are anything else."""
    if (head := _EVENT(event)) is None:
        return b""
    start, end = head.end(), len(event) - 2
    if event.endswith(b"\r\n\r\n"):
        end -= 2
    elif not event.endswith(b"\n\n"):
        return b""
    data = event[start:end]
    return b"" if b"\n" in data or b"\r" in data else data


# Who wants to see more


def may_take(service: Service) -> bool:
    """Tell whether nobody wants to see or change more of a plain call than the lane does.

    (Each hook that ``needs_messages`` stands here; a test compares.)
    """
    listener = service.listener
    policy = listener.policy
    config, limits = policy.config, policy.config.limits
    return service.take_lane is not None and policy.observe_plain is not None and not (
        policy.links or policy.propagate or policy.keeps_requests
        or service.before_sending or service.before_answering or service.rewrite_body
        or service.note_over or service.connect or service.is_ending or service.learns_logins
        or config.shadow or config.catalog or config.only_mcp
        or listener.is_forward or listener.keeps_host or listener.legacy.endpoints
        or limits.depth < _FEWEST_LEVELS or limits.message < _MOST or limits.pending < 2 * _MOST
    )  # fmt: skip


def take_lane(service: Service, down: H1Client, head: RequestHead, body: bytes) -> Lane | None:
    """Return the lane of a request; None if it must go the whole way. Never raises."""
    try:
        return _lane_for(service, down, head, body)
    except Exception as error:  # a bug of ours: the whole way judges it, too
        service.note_failure(error)
        return None


def _lane_for(service: Service, down: H1Client, head: RequestHead, body: bytes) -> Lane | None:
    notes, policy = head.notes, service.listener.policy
    known = notes.head
    if (
        known is None or not notes.out_head
        or notes.config is not policy.config or notes.problem is not None
        or head.method != "POST" or known.target != policy.fetched.endpoint or known.problem
        or not may_take(service)
        or (service.seats is not None and service.seats.standing and down.lacks_seat)
        or (service.shares_seats and service.is_crowded)
    ):  # fmt: skip
        return None
    before, may_be_login = service.before_judging, service.may_be_login
    if before is not None and (may_be_login is None or may_be_login(head.target)):
        return None
    said, names = known.said, known.names
    if said.coding or said.method not in (None, _METHOD) or not names.are_harmless:
        return None
    if (call := plain_call(body)) is None or said.name not in (None, call.tool):
        return None
    if said.name is not None and call.tool.startswith("=?"):  # it may be encoded
        return None
    now = policy.clock()
    id, session = said.session_id or None, None
    if id and (session := service.listener.sessions.get(id, now)) is None:
        return None
    client = Client(Via.HTTP, session, None if session else said.revision)
    client.claimed_session = id
    kind = policy.kinds.of(client, _exchange_of(call, now, len(body)) if call.declared else None)
    if not _is_certain(kind) or kind.snapshot.standing(call.tool) is not Standing.ALLOWED:
        return None
    if (editor := policy.config.editor) is None:
        sent: bytes | None = body
    else:
        sent = editor.plain(call.tool, body, call.arguments, kind.snapshot)
    if sent is None:
        return None
    if session is not None:
        session.has_acted = True
    return Lane(service, down, head, body, call, client, kind, now, sent)


def _exchange_of(call: CallRead, asked_at: float, size: int) -> RpcExchange:
    exchange = RpcExchange(_METHOD, call.id.decode(), call.tool, asked_at, size)
    if call.declared is not None:
        exchange.capabilities, exchange.program = call.declared
    return exchange


def _is_certain(kind: Kind) -> bool:
    """Tell whether the list of a kind of asker is known, and is not about to change."""
    return kind.is_listed and not kind.is_stale and not kind.is_split


class Lane:
    """One plain call, until its answer has come or it is a whole exchange."""

    flow = None
    stream: AnswerHead | None = None
    """The head of the event stream that the client gets."""
    address: Address | None = None
    may_use_any = False
    size = 0
    called = ""
    answer = b""

    def __init__(
        self, service: Service, down: H1Client, head: RequestHead, body: bytes, call: CallRead,
        client: Client, kind: Kind, asked_at: float, sent: bytes,
    ) -> None:  # fmt: skip
        """``sent`` is what the upstream gets; it differs from the body if an edit adds to it."""
        self.service, self.down, self.head = service, down, head
        self.most_idle = service.limits.young
        self.up: Upstream | None = None
        self.body, self.client, self.tool, self.asked_at = body, client, call.tool, asked_at
        self.sent_at = asked_at
        self._call, self._kind, self.meta = call, kind, call.meta
        self._sent = sent
        self._whole: Exchange | None = None
        self._observer: PlainObserver | None = None
        self._fields: Fields = ()
        self._has_result = self._is_over = False

    @property
    def id(self) -> str:
        """The id as it was written."""
        return self._call.id.decode()

    def begin(self) -> None:
        """Send the call."""
        self.service.lanes.add(self)
        policy = self.service.listener.policy
        observer = self._observer = policy.observe_plain
        assert observer is not None
        self.sent_at = policy.clock()
        observer.plain_begins(self)
        if (idle := self.down.host.connect(self)) is not None:
            self.connected(idle)

    def connected(self, up: Upstream) -> None:
        if self._whole is not None:
            return self._whole.connected(up)
        self.up = up
        up.begin(
            cast("Exchange", self), head=self.head.notes.out_head, method="POST", body=self._sent
        )
        if self.down.is_slow:
            up.slow_down(True)
        return None

    def on_answer(self, head: AnswerHead, body: bytes) -> None:
        """Pass on a plain result; whatever else comes is for the whole exchange."""
        fields = fields_of(head, self.service.listener)
        notes, is_stream = head.notes, head.notes.kind == _STREAM
        result = data_in(body) if is_stream else body
        if not (is_stream or notes.kind == _JSON) or not self._may_pass(head, result):
            return self.whole().on_answer(head, body)
        self._note_result(result)
        self._end()
        if is_stream:
            return self.down.stream_plainly(notes, fields, body)
        return self.down.respond_plainly(notes, fields, body)

    def on_head(self, head: AnswerHead) -> None:
        """Pass on the head of an event stream."""
        fields = fields_of(head, self.service.listener)
        if head.notes.kind != _STREAM or not self._is_open_for(head):
            return self.whole().on_head(head)
        self._fields, self.stream = fields, head
        return self.down.stream_plainly(head.notes, fields)

    def on_data(self, data: bytes) -> None:
        """Pass on the event that is a plain result."""
        head, result = self.stream, data_in(data)
        if head is None or self._has_result or not self._may_pass(head, result):
            return self.whole().on_data(data)
        self._note_result(result)
        return self.down.stream(data)

    def on_end(self) -> None:
        if self._whole is not None or not self._has_result:
            return self.whole().on_end()
        self._end()
        return self.down.stream(b"", is_last=True)

    def _is_open_for(self, head: AnswerHead) -> bool:
        """Tell whether an answer's head is plain, and nothing has happened since the call that
        concerns it."""
        notes, policy = head.notes, self.service.listener.policy
        return (
            head.status == 200 and not notes.coding
            and not notes.session and not notes.locations and not notes.challenges
            and self._whole is None and policy.config is self.head.notes.config
            and policy.observe_plain is self._observer
            and _is_certain(self._kind) and may_take(self.service)
        )  # fmt: skip

    def _may_pass(self, head: AnswerHead, result: bytes) -> bool:
        if not self._is_open_for(head) or not is_plain_result(result, self._call.id):
            return False
        if self.service.listener.policy.config.editor is None:
            return True
        return result.find(b"tools") < 0 and result.find(b"\\u") < 0  # it may have definitions

    def _note_result(self, result: bytes) -> None:
        self._has_result, self.answer = True, result
        assert self._observer is not None
        self._observer.plain_ends(self)

    def _end(self) -> None:
        self._is_over = True
        self.service.lanes.discard(self)

    def whole(self) -> Exchange:
        """Return the exchange that goes on in our place, as if it had been one from the start."""
        if self._whole is not None:
            return self._whole
        service, head, policy = self.service, self.head, self.service.listener.policy
        whole = self._whole = Exchange(service, self.down, head)
        conversation = Conversation(policy, self.client)
        waiting = _exchange_of(self._call, self.asked_at, len(self.body))
        if not self._has_result:
            conversation.exchanges.open(waiting)
        known = head.notes.head
        assert known is not None
        head.target = known.target
        whole.asked = HttpExchange(conversation, known, is_endpoint=True)
        whole.asked.announces = False
        whole.has_all, whole.body, whole.phase = True, self._sent, Phase.ASKING
        whole.out_fields, whole.out_head = head.notes.out_fields or (), head.notes.out_head
        whole.most_idle = self.most_idle
        if self.up is not None:
            whole.up, whole.tries = self.up, 1
            self.up.serve(whole)
        service.lanes.discard(self)
        service.open.add(whole)
        if self.down.exchange is self:
            self.down.exchange = whole
        if self._observer is not None and not self._has_result:
            self._observer.plain_leaves(self, waiting, whole)
        if (begun := self.stream) is not None:
            whole.answer = Answer(200, begun.notes.reason, self._fields)
            whole.stream = open_stream(whole, whole.asked, whole.answer, begun.notes)
            whole.phase, whole.body, whole.out_fields, whole.out_head = (
                Phase.STREAMING, b"", (), None,
            )  # fmt: skip
        return whole

    @property
    def is_over(self) -> bool:
        return self._is_over or (self._whole is not None and self._whole.is_over)

    # What the lane does not know

    def unreachable(self, why: str) -> None:
        self.whole().unreachable(why)

    def upstream_lost(self, *, was_idle: bool) -> None:
        self.whole().upstream_lost(was_idle=was_idle)

    def upstream_is_slow(self, on: bool) -> None:
        """The call is sent already."""

    def take(self, data: bytes) -> None:
        self.whole().take(data)

    def end_of_request(self) -> None:
        self.whole().end_of_request()

    def client_left(self) -> None:
        self.whole().client_left()

    def cut(self, why: str) -> None:
        self.whole().cut(why)

    def fail(self, error: Exception) -> None:
        if not self._is_over:
            return self.whole().fail(error)
        self.service.note_failure(error)  # the client may have a part of the answer
        return self.down.host.abort()
