"""What people see of us in mitmweb and the console, and what a recording keeps.

``FlowObserver`` hears about each flow (``meet``), the upstream's answer before we change it
(``note_head``, ``note_chunk``), what the client gets of a stream (``note_said``), each verdict
(``tell``), and the end (``finish``). Without mitmweb, the console or ``-w`` nobody could see it, so
verdicts are only counted.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from mitmproxy import ctx
from mitmproxy.hooks import UpdateHook
from mitmproxy.http import HTTPFlow
from mitmproxy.master import Master
from mitmproxy.options import Options

from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.head import Fields
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.messages.messages import Message, Request, Response, singles
from mcp_tool_filter.core.policy.situation import Direction
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.policy.verdict import Forward, Verdict, Why
from mcp_tool_filter.core.process.background import in_background
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.sentences import describe, describe_reported
from mcp_tool_filter.core.process.statistics import JsonObject
from mcp_tool_filter.core.process.verdict_log import is_refusal
from mcp_tool_filter.rooms.audit.facts import problem_in
from mcp_tool_filter.rooms.mitmproxy.flows import flow_of, hidden_target
from mcp_tool_filter.rooms.mitmproxy.options import was_set
from mcp_tool_filter.rooms.page.dashboard import (
    Dashboard,
    answer_page,
    answer_visitor,
    not_let_in,
    render_sessions,
    render_statistics,
    render_tools,
)
from mcp_tool_filter.rooms.page.page import LivePage
from mcp_tool_filter.rooms.recordings.flow_dump import (
    MOST_KEPT,
    Kept,
    keep_chunk,
    keep_fetched,
    keep_head,
    keep_request,
)

log = logging.getLogger(__name__)

_SHOWS_BODIES = "mitmproxy.contentviews"
if _SHOWS_BODIES in sys.modules:
    # Import now: mitmproxy finds modules beside a script only while it loads that script. But not
    # always: mitmproxy's own views are slow to import, and the lean master shows nothing.
    import mcp_tool_filter.rooms.mitmproxy.content_view  # noqa: F401 - it registers itself

type _Render = Callable[[Iterable[JsonObject]], Iterator[str]]

WEB_COLUMNS = ["icon", "method", "path", "status", "comment", "size", "time"]
_MOST_SENTENCES = 50
_SECONDS_BETWEEN_UPDATES = 0.25
_FORWARDED = "forwarded"
_REFUSED, _HIDDEN, _INVALID = ":no_entry_sign:", ":see_no_evil:", ":warning:"
_REPORTED = ":eyes:"
# mitmweb accepts only these letters, and the dot.
_COMMANDS = {
    "mcp.tools": render_tools,
    "mcp.sessions": render_sessions,
    "mcp.stats": render_statistics,
}
_TELLS_OF_TOOLS = frozenset({"initialize", "server/discover", "tools/list"})


@dataclass(slots=True)
class _Seen:
    """What we know about a flow that people may look at."""

    kept: Kept
    filtered: bytearray = field(default_factory=bytearray)
    is_stream: bool = False
    is_over: bool = False
    awaits_update: bool = False


class FlowObserver:
    """Observes the flows of all listeners."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.is_watched = False
        """True if somebody could see flows. If not, callers may skip all calls about flows."""
        self._seen: WeakKeyDictionary[HTTPFlow, _Seen] = WeakKeyDictionary()
        self._introduced: set[str] = set()

    # Called for each flow

    def meet(self, flow: HTTPFlow, host: str) -> None:
        """Note a new request that is about to be judged."""
        self._seen[flow] = _Seen(keep_request(flow, host))

    def note_head(self, flow: HTTPFlow, status: int, fields: Fields) -> None:
        """Note the head of the upstream's answer."""
        if seen := self._seen.get(flow):
            keep_head(seen.kept, fields, status, time.time())

    def note_chunk(self, flow: HTTPFlow, data: bytes) -> None:
        """Note the next part of the upstream's answer; b"" is the end."""
        if seen := self._seen.get(flow):
            keep_chunk(seen.kept, data, time.time())

    def note_said(self, flow: HTTPFlow, data: bytes) -> None:
        """Note what the client gets of a stream."""
        if seen := self._seen.get(flow):
            seen.is_stream = True
            seen.filtered += data[: MOST_KEPT - len(seen.filtered)]
            self._update_soon(flow, seen)

    def tell(self, name: str, judged: Judged) -> None:
        """Note a verdict of the site with this name."""
        flow = flow_of(judged.origin)
        if not self.is_watched or flow is None:
            return
        if (seen := self._seen.get(flow)) is None:
            return
        mark = _REPORTED if judged.would is not None else ""
        self._comment(flow, _sentence_about(judged), _mark(judged.verdict) or mark)
        if listener := self._proxy.listeners.get(name):
            self._keep_tools(name, listener, flow, seen.kept, judged.message)

    def note_refused_edit(self, error: StartError | None) -> None:
        """Note that an edit of an option was refused; None means that the options are valid again.

        mitmweb's own page does not show the error for long: its next update hides it.
        """
        self._proxy.plugs.find(LivePage).overview.refused_edit = str(error) if error else ""
        if error:
            log.warning("Not adopted, the old filter stays. %s", error)

    # Called by the tool filter when it has finished a hook

    def load(self, master: Master) -> None:
        """Add the commands, and the content view if something can show it."""
        for name, render in _COMMANDS.items():
            master.commands.add(name, self._command(render))
        if _SHOWS_BODIES in sys.modules:
            from mcp_tool_filter.rooms.mitmproxy.content_view import add_views

            add_views()

    def configure(self, updated: Collection[str]) -> None:
        records = bool(getattr(ctx.options, "save_stream_file", None))
        if "save_stream_file" in updated:
            self._introduced.clear()  # a new recording begins
        shows = ctx.master.addons.get("view") is not None
        self.is_watched = records or shows

    def running(self) -> None:
        self.configure(())
        if getattr(ctx.master, "app", None) is not None:
            dashboard = self._proxy.plugs.find(LivePage).dashboard
            dashboard.has_flows = True
            _add_page(ctx.master, dashboard)
        _show_comments(ctx.options)

    def finish(self, flow: HTTPFlow) -> None:
        """Note that a flow has ended."""
        if self.is_watched and (seen := self._seen.get(flow)):
            seen.is_over = True
            self._show_filtered(flow, seen)

    def done(self) -> None:
        for flow in list(self._seen):
            self.finish(flow)

    def _command(self, render: _Render) -> Callable[[], Sequence[str]]:
        def command() -> Sequence[str]:
            return list(render(self._proxy.plugs.find(LivePage).overview.render()))

        command.__doc__ = render.__doc__
        return command

    def _update_soon(self, flow: HTTPFlow, seen: _Seen) -> None:
        """Update the views soon, several events at a time."""
        if seen.awaits_update or ctx.master.addons.get("view") is None:
            return
        seen.awaits_update = True
        loop = asyncio.get_running_loop()
        loop.call_later(_SECONDS_BETWEEN_UPDATES, self._update, flow, seen)

    def _update(self, flow: HTTPFlow, seen: _Seen) -> None:
        seen.awaits_update = False
        if not seen.is_over:
            self._show_filtered(flow, seen)
            in_background(ctx.master.addons.trigger_event(UpdateHook([flow])))

    def _show_filtered(self, flow: HTTPFlow, seen: _Seen) -> None:
        if flow.response and seen.is_stream:
            # Not .content: that would also change the headers.
            flow.response.data.content = bytes(seen.filtered)

    def _comment(self, flow: HTTPFlow, sentence: str, mark: str) -> None:
        sentences = flow.comment.split("\n\n") if flow.comment else []
        if sentence in sentences or len(sentences) >= _MOST_SENTENCES:
            return
        is_first = len(sentences) == 1 and sentences[0].endswith(_FORWARDED)
        if is_first and sentence != _FORWARDED and not sentences[0].startswith("tools/call"):
            sentences = []  # the other sentences say more
        if sentence != _FORWARDED or not sentences:
            flow.comment = "\n\n".join([*sentences, sentence])
        if mark:
            flow.marked = mark

    def _keep_tools(
        self,
        spec: str,
        listener: Listener,
        flow: HTTPFlow,
        kept: Kept,
        message: Message | None,
    ) -> None:
        """Store the upstream's tools with the flows in which a replay would look for them."""
        messages = singles(message) if message else ()
        methods = {one.method for one in messages if isinstance(one, Request)}
        if spec not in self._introduced or methods & _TELLS_OF_TOOLS:
            self._introduced.add(spec)
            fetched = listener.fetched
            endpoint = hidden_target(flow, fetched.endpoint)
            keep_fetched(kept, replace(fetched, endpoint=endpoint))


def _sentence_about(judged: Judged) -> str:
    """Describe the verdict on a message; of a forwarded request, the message."""
    sentence = describe(judged.verdict, judged.snapshot)
    if judged.would is not None:
        said = describe_reported(judged.would, judged.snapshot)
        sentence = said if sentence == _FORWARDED else f"{sentence}; {said}"
    in_batch = bool(judged.members)
    failures = (_failure_in(one, in_batch=in_batch) for one in judged.each)
    if failed := "; ".join(filter(None, failures)):
        return failed if sentence == _FORWARDED else f"{sentence}; {failed}"
    asked = judged.exchange
    if judged.direction is not Direction.FROM_CLIENT or not asked or sentence != _FORWARDED:
        return sentence
    tool = f" {shown(asked.tool)}" if asked.tool else ""
    return f"{shown(asked.method)}{tool}: {sentence}"


def _failure_in(judged: Judged, *, in_batch: bool) -> str:
    """Describe the error with which a call was answered, if it was; in a batch, name the tool."""
    message, asked = judged.message, judged.exchange
    if not isinstance(message, Response) or asked is None or asked.tool is None:
        return ""
    problem = problem_in(message)
    if not problem and message.result is not None:
        return ""
    from mcp_tool_filter.rooms.secrets.finder import redact  # slow to import

    of = f" of {shown(asked.tool)}" if in_batch else ""
    return f"the call{of} failed: {redact(problem or 'an error without a text')}"


def _show_comments(options: Options) -> None:
    """Show tool and verdict in mitmweb's list, unless the user has chosen the columns."""
    if "web_columns" in options and not was_set(options, "web_columns"):
        options.update(web_columns=WEB_COLUMNS)


def _mark(verdict: Verdict) -> str:
    if isinstance(verdict, Forward):
        return ""
    if verdict.reason.why is Why.INVALID:
        return _INVALID
    return _REFUSED if is_refusal(verdict) else _HIDDEN


# The page /mcp in mitmweb: the tool filter at a glance, behind mitmweb's token

_NO_TOKEN = not_let_in(
    "This page needs mitmweb's token",
    "mitmweb printed an address with <code>?token=…</code> when it started. Open that address once"
    " in this browser, then return to this page.",
)
_OUR_STYLE = b'<link rel="stylesheet" href="/mcp/mitmweb.css"></head>'
_OUR_LINK = b'<body><a id="mcp-tool-filter" href="/mcp">MCP tool filter</a>'


def _add_page(master: Master, dashboard: Dashboard) -> None:
    """Add the page to mitmweb; other masters have no ``app``."""
    app = getattr(master, "app", None)
    if app is None:
        return
    # Imported late: only mitmweb has tornado loaded anyway.
    import tornado.web
    from mitmproxy.tools.web.app import IndexHandler, RequestHandler

    class Index(IndexHandler):
        """mitmweb's own page with a link to ours, which nobody would find otherwise."""

        def render_string(self, template_name: str, **values: object) -> bytes:
            text: bytes = super().render_string(template_name, **values)
            if not template_name.endswith("index.html"):
                return text
            return text.replace(b"</head>", _OUR_STYLE, 1).replace(b"<body>", _OUR_LINK, 1)

    class ToolFilterPage(RequestHandler):
        def auth_fail(self, invalid_password: bool) -> None:
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            self.write(_NO_TOKEN)

        async def get(self) -> None:
            # The page's requests carry the token that this sets as a cookie.
            _ = self.xsrf_token
            await self._give()

        async def post(self) -> None:
            await self._give()

        async def _give(self) -> None:
            asked = self.request
            method, path = asked.method or "", asked.path
            answer = await answer_visitor(dashboard, method, path, asked.body)
            self.set_status(answer.status)
            self.set_header("Content-Type", answer.content_type)
            self.set_header("Cache-Control", "no-store")
            self.write(answer.body)

    class Style(tornado.web.RequestHandler):
        """Needs no token, because the page about the missing token has the same style."""

        def get(self) -> None:
            answer = answer_page(dashboard, "GET", self.request.path, b"")
            self.set_header("Content-Type", answer.content_type)
            self.write(answer.body)

    pages = [(r"/", Index), (r"/mcp/page\.css", Style), (r"/mcp(?:/[^/]*)?", ToolFilterPage)]
    app.add_handlers(r".*", pages)
