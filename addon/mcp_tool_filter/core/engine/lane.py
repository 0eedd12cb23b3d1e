"""The lane: the short way of the commonest exchange, a plain call of an allowed tool in a session.

The idea: a call is plain if its bytes prove that there is nothing to judge but its name. It has the
members of the schema, each once and in the usual spelling, so every reader reads it as we do. Its
answer is plain in the same way. The whole way would forward both unchanged; so does the lane, and
remembers only the id.

    a plain call ──► sent ──► a plain result ──► answered
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
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce, needs_of
from mcp_tool_filter.core.engine.exchange import Answer, Exchange, Phase, fields_of
from mcp_tool_filter.core.engine.service import Service
from mcp_tool_filter.core.http.asked import HttpExchange
from mcp_tool_filter.core.messages.large import SIMPLE_ID
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

_MOST = 256 * 1024  # bytes: longer ones are rare, and the whole way takes hardly longer for them
_MOST_BRACKETS = 100  # so it nests less deeply than any limit that users may set
_FEWEST_LEVELS = _MOST_BRACKETS + 2
_ID = re.compile(SIMPLE_ID).fullmatch
_PROGRESS = re.compile(rb'\{"progressToken":(?:%b)\}' % SIMPLE_ID).fullmatch
_NAME = re.compile(rb'"[!#-\[\]-~]{1,256}"').fullmatch  # ASCII without space, quote, backslash
_BRACKETS = (b"[", b"{")
_CALL = len('{"jsonrpc":"2.0","id":,"method":"tools/call","params":{"name":}}')
_ARGUMENTS, _META = len(',"arguments":'), len(',"_meta":')
_RESULT = frozenset({"content", "structuredContent", "isError"})

# What the bytes say


class CallRead(NamedTuple):
    """What a plain call says: its name alone is to be judged."""

    id: bytes
    tool: str


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
    if len(raw) > _MOST or b"\\u" in raw or (readers := _readers()) is None:
        return None
    try:
        call = readers[0](raw)
        raw.decode()
    except (ValueError, RecursionError):
        return None
    params = call.params
    id, name = bytes(call.id), bytes(params.name)
    if call.jsonrpc != "2.0" or call.method != "tools/call" or not _ID(id) or not _NAME(name):
        return None
    length = _CALL + len(id) + len(name)
    arguments, meta = bytes(params.arguments), bytes(params._meta)  # empty if there are none
    if arguments:
        length += _ARGUMENTS + len(arguments)
        if arguments[:1] != b"{" or opens_more(raw, _BRACKETS, 0, len(raw), _MOST_BRACKETS):
            return None
    if meta:
        length += _META + len(meta)
        if not _PROGRESS(meta):
            return None
    if length != len(raw) and (meta or raw not in _spaced(id, name, arguments)):
        return None
    return CallRead(id, name[1:-1].decode())


def _spaced(id: bytes, name: bytes, arguments: bytes) -> tuple[bytes, ...]:
    """Return the call as Python's json writes it, in the two usual orders."""
    call = b'"method": "tools/call", "params": {"name": %b, "arguments": %b}' % (name, arguments)
    begin = b'"jsonrpc": "2.0", "id": %b' % id
    return b"{%b, %b}" % (begin, call), b"{%b, %b}" % (call, begin)


def is_plain_result(raw: bytes, id: bytes) -> bool:
    """Tell whether this is the result of a call, with only the schema's members, each once."""
    end = len(raw) - 1
    if raw.startswith(b'{"jsonrpc":"2.0","id":%b,"result":{' % id) and raw.endswith(b"}}"):
        start = len('{"jsonrpc":"2.0","id":,"result":') + len(id)
    elif raw.startswith(b'{"result":{') and raw.endswith(b'},"jsonrpc":"2.0","id":%b}' % id):
        start, end = len('{"result":'), end - len(',"jsonrpc":"2.0","id":') - len(id)
    else:
        return False
    if len(raw) > _MOST or (readers := _readers()) is None:
        return False
    try:
        members = readers[1](memoryview(raw)[start:end])
        raw.decode()
    except (ValueError, RecursionError):
        return False
    length = 1
    for key, value in members.items():
        length += len(key) + 4 + len(bytes(value))
    return (
        length == end - start
        and members.keys() <= _RESULT
        and bytes(members.get("isError", b"false")) == b"false"
        and not opens_more(raw, _BRACKETS, 0, len(raw), _MOST_BRACKETS)
    )


# Who wants to see more


_OF_SERVICE, _OF_POLICY = (
    attrgetter(*[name for name, needs in needs_of(kind).items() if needs])
    for kind in (Service, PolicyInForce)
)


def may_take(service: Service) -> bool:
    """Tell whether nobody wants to see or change more of a plain call than the lane does."""
    listener = service.listener
    policy = listener.policy
    config = policy.config
    return (
        service.has_lane and policy.observe_plain is not None
        and not any(_OF_SERVICE(service)) and not any(_OF_POLICY(policy))
        and not config.shadow and config.catalog is None and config.editor is None
        and not config.only_mcp
        and config.limits.depth >= _FEWEST_LEVELS and config.limits.message >= _MOST
        and not listener.is_forward and not listener.keeps_host and not listener.legacy.endpoints
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
        known is None or not notes.out_head  # the first with this head always goes the whole way
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
    if said.coding or said.method is not None or said.name is not None or not said.session_id:
        return None
    if not names.are_harmless or (call := plain_call(body)) is None:
        return None
    now = policy.clock()
    session = service.listener.sessions.get(said.session_id, now)
    if session is None:
        return None
    client = Client(Via.HTTP, session, None, claimed_session=said.session_id)
    kind = policy.kinds.of(client)
    if not _is_certain(kind) or kind.snapshot.standing(call.tool) is not Standing.ALLOWED:
        return None
    session.has_acted = True
    return Lane(service, down, head, body, call, client, kind, now)


def _is_certain(kind: Kind) -> bool:
    """Tell whether the list of a kind of asker is known, and is not about to change."""
    return kind.is_listed and not kind.is_stale and not kind.is_split


class Lane:
    """One plain call, until its answer has come or it is a whole exchange."""

    stream = flow = None
    address: Address | None = None
    may_use_any = False
    size = 0
    called = ""
    answer = b""

    def __init__(
        self, service: Service, down: H1Client, head: RequestHead, body: bytes, call: CallRead,
        client: Client, kind: Kind, asked_at: float,
    ) -> None:  # fmt: skip
        self.service, self.down, self.head = service, down, head
        self.most_idle = service.limits.young
        self.up: Upstream | None = None
        self.body, self.client, self.tool, self.asked_at = body, client, call.tool, asked_at
        self.sent_at = asked_at
        self._id, self._kind = call.id, kind
        self._whole: Exchange | None = None
        self._observer: PlainObserver | None = None
        self._is_answered = False

    @property
    def id(self) -> str:
        """The id as it was written."""
        return self._id.decode()

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
            cast("Exchange", self), head=self.head.notes.out_head, method="POST", body=self.body
        )
        if self.down.is_slow:
            up.slow_down(True)
        return None

    def on_answer(self, head: AnswerHead, body: bytes) -> None:
        """Pass on a plain result; whatever else comes is for the whole exchange."""
        listener = self.service.listener
        notes, policy = head.notes, listener.policy
        fields = fields_of(head, listener)
        observer = policy.observe_plain
        if (
            observer is None or observer is not self._observer
            or head.status != 200 or notes.kind != "application/json"
            or notes.coding or notes.session or notes.locations or notes.challenges
            or policy.config is not self.head.notes.config or not _is_certain(self._kind)
            or not may_take(self.service) or not is_plain_result(body, self._id)
        ):  # fmt: skip
            return self.whole().on_answer(head, body)
        self._is_answered = True
        self.service.lanes.discard(self)
        self.answer = body
        observer.plain_ends(self)
        return self.down.respond(Answer(200, notes.reason, fields, body), is_bare=False)

    def whole(self) -> Exchange:
        """Return the exchange that goes on in our place, as if it had been one from the start."""
        if self._whole is not None:
            return self._whole
        service, head, policy = self.service, self.head, self.service.listener.policy
        whole = self._whole = Exchange(service, self.down, head)
        conversation = Conversation(policy, self.client)
        waiting = RpcExchange("tools/call", self.id, self.tool, self.asked_at, len(self.body))
        conversation.exchanges.open(waiting)
        assert head.notes.head is not None
        whole.asked = HttpExchange(conversation, head.notes.head, is_endpoint=True)
        whole.asked.announces = False
        whole.has_all, whole.body, whole.phase = True, self.body, Phase.ASKING
        whole.out_fields, whole.out_head = head.notes.out_fields or (), head.notes.out_head
        whole.most_idle = self.most_idle
        if self.up is not None:
            whole.up, whole.tries = self.up, 1
            self.up.serve(whole)
        service.lanes.discard(self)
        service.open.add(whole)
        if self.down.exchange is self:
            self.down.exchange = whole
        if self._observer is not None:
            self._observer.plain_leaves(self, waiting, whole)
        return whole

    @property
    def is_over(self) -> bool:
        return self._is_answered or (self._whole is not None and self._whole.is_over)

    # What the lane does not know

    def unreachable(self, why: str) -> None:
        self.whole().unreachable(why)

    def upstream_lost(self, *, was_idle: bool) -> None:
        self.whole().upstream_lost(was_idle=was_idle)

    def upstream_is_slow(self, on: bool) -> None:
        """The call is sent already."""

    def on_head(self, head: AnswerHead) -> None:
        self.whole().on_head(head)

    def on_data(self, data: bytes) -> None:
        self.whole().on_data(data)

    def on_end(self) -> None:
        self.whole().on_end()

    def take(self, data: bytes) -> None:
        self.whole().take(data)

    def end_of_request(self) -> None:
        self.whole().end_of_request()

    def client_left(self) -> None:
        self.whole().client_left()

    def cut(self, why: str) -> None:
        self.whole().cut(why)

    def fail(self, error: Exception) -> None:
        if not self._is_answered:
            return self.whole().fail(error)
        self.service.note_failure(error)  # the client may have a part of the answer
        return self.down.host.abort()
