"""Count messages for Prometheus, and serve ``/metrics``, ``/livez`` and ``/readyz``.

prometheus_client is imported only if a port is configured. The server has its own thread and event
loop, so it answers even while the filter is busy, and also over stdio.

Balancers ask for ``/livez`` (or ``/healthz``) and ``/readyz`` under any Host. ``/metrics`` names
tools, also hidden ones, only for clients that know the token; for all others the series of all
tools are added up:

>>> metrics = Metrics(dict)
>>> for tool in ("read", "write"):
...     metrics.show({"method": "tools/call", "tool": tool, "verdict": "forwarded"})
>>> for registry in (metrics.registry, WithoutTools(metrics.registry)):
...     [one] = [family for family in registry.collect() if family.name == "mcp_tool_filter_calls"]
...     [(one.labels, one.value) for one in one.samples if one.name.endswith("_total")]
[({'tool': 'read'}, 1.0), ({'tool': 'write'}, 1.0)]
[({}, 2.0)]
"""

from __future__ import annotations

import asyncio
import hmac
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, cast

from mcp_tool_filter import how_to_install
from mcp_tool_filter.cli.http_server import PAGE_LIMITS, comes_from_here, http_server
from mcp_tool_filter.core.errors import StartError, reason_of
from mcp_tool_filter.core.policy.config import AllowedHosts, MetricsAt
from mcp_tool_filter.core.policy.verdict import Why
from mcp_tool_filter.core.sockets.served import ServedRequest, ServedResponse
from mcp_tool_filter.rooms.audit.entry import Entry, has_failed, method_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Sample

_NAMESPACE = "mcp_tool_filter"
_MOST_NAMES = 200
_THINGS = frozenset({"prompt", "resource", "skill"})
OTHER = "other"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_PLAIN = b"text/plain; charset=utf-8"
_BYTES_PER_TOKEN = 4
_SERVER = "server"
_TOOL, _NAME = "tool", "name"  # the labels that name a tool, or something else that is denied
_PROBES = ("/livez", "/healthz", "/readyz")  # balancers ask for them under any Host

type State = Callable[[], Mapping[str, float | Mapping[str, float]]]
"""Returns the current gauges by name, or those of each server; ``ready`` tells whether lists can be
answered."""


class SeriesNames:
    """Names that are series of their own; those that clients make up crowd out no others."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def bounded(self, name: str) -> str:
        """Return the name, or "other" if there are too many, because each name is a time series."""
        if name in self._known:
            return name
        if len(self._known) >= _MOST_NAMES:
            return OTHER
        self._known.add(name)
        return name


_COUNTERS = {
    "messages": ("Messages by method, class and verdict.", "method", "class", "verdict"),
    "calls": ("Calls that went through.", _TOOL),
    "refusals": ("Calls that were refused.", _TOOL, "why"),
    "refused_things": ("Requests for denied prompts, resources and skills.", "kind", _NAME),
    "errors": ("Calls answered with an error.", _TOOL),
    "rule_hits": ("Messages that a rule decided on.", "rule"),
    "shadow": ("Messages only reported, by what would happen.", _TOOL, "verdict", "why"),
    "drift": ("Differences from the snapshot.",),
    "lists": ("Tool lists without the hidden tools.",),
    "saved_bytes": ("Bytes of hidden tools that lists did not carry.",),
    "saved_tokens": ("Tokens of hidden tools, estimated.",),
}
"""What each counts, and its labels."""
_HISTOGRAMS = {
    "own_ms": ("own_seconds", "Time that the filter adds to a request."),
    "upstream_ms": ("upstream_seconds", "Time until the upstream answers."),
}
"""Each with the part of an entry that it is of."""


class Metrics:
    """The metrics of the process. Raises StartError without prometheus_client."""

    def __init__(self, state: State, *, names_servers: bool = False) -> None:
        """``names_servers`` if each series is of one server of several."""
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram
        except ImportError:
            why = f"Install it: {how_to_install('metrics')}"
            raise StartError("--metrics-port needs prometheus_client", why=why) from None
        self.state = state
        self._names: dict[str, SeriesNames] = defaultdict(SeriesNames)
        self.registry = registry = CollectorRegistry()
        more = self._more = (_SERVER,) if names_servers else ()
        self._counters = {
            name: Counter(name, text, (*labels, *more), namespace=_NAMESPACE, registry=registry)
            for name, (text, *labels) in _COUNTERS.items()
        }
        self._series: dict[tuple[str, ...], Counter] = {}
        """Those that have counted: to find one by its labels takes longer than to count."""
        self._histograms = {
            of: Histogram(
                name, text, more, namespace=_NAMESPACE, registry=registry, buckets=_SECONDS
            )
            for of, (name, text) in _HISTOGRAMS.items()
        }
        registry.register(cast("Collector", self))  # for the gauges

    def show(self, entry: Entry) -> None:
        """Count a message."""
        server = tuple(str(entry.get(name, "")) for name in self._more)

        def count(name: str, *labels: str, by: int = 1) -> None:
            key = (name, *labels, *server)
            if (series := self._series.get(key)) is None:
                series = self._series[key] = _of(self._counters[name], key[1:])
            series.inc(by)

        verdict, method, why = str(entry.get("verdict")), method_of(entry), str(entry.get("why"))
        tool = str(entry["tool"]) if "tool" in entry else ""
        if entry.get("shadow"):
            what = self._bounded("reported", tool or method)
            for prefix in ("", "answer_"):
                would = entry.get(f"{prefix}verdict")
                if would not in (None, "forwarded"):
                    count("shadow", what, str(would), str(entry.get(f"{prefix}why")))
            verdict = "forwarded"
        count("messages", self._bounded("method", method), str(entry.get("class")), verdict)
        is_refused = verdict in ("refused", "dropped")
        if "tool" in entry and is_refused:
            kind = "unknown" if why == Why.UNKNOWN else "denied"
            count("refusals", self._bounded(kind, tool), why)
        elif "tool" in entry:
            count("calls", name := self._bounded("called", tool))
            if has_failed(entry):
                count("errors", name)
        elif (is_refused or verdict == "changed") and why == Why.DENIED:
            for thing in _THINGS.intersection(entry):
                count("refused_things", thing, self._bounded("thing", str(entry[thing])))
        for name in ("rule", "answer_rule"):
            if rule := entry.get(name):
                count("rule_hits", self._bounded("rule", str(rule)))
        if isinstance(drift := entry.get("drift"), int):
            count("drift", by=drift)
        if isinstance(saved := entry.get("saved_bytes"), int):
            count("lists")
            count("saved_bytes", by=saved)
            count("saved_tokens", by=saved // _BYTES_PER_TOKEN)
        for name, histogram in self._histograms.items():
            if isinstance(took := entry.get(name), float):
                _of(histogram, server).observe(took / 1000)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, which are computed when Prometheus asks."""
        from prometheus_client.core import GaugeMetricFamily

        for name, value in self.state().items():
            full, about = f"{_NAMESPACE}_{name}", f"{name.replace('_', ' ')}."
            if isinstance(value, Mapping):
                family = GaugeMetricFamily(full, about, labels=[_SERVER])
                for server, each in value.items():
                    family.add_metric([server], each)
            else:
                family = GaugeMetricFamily(full, about, value)
            yield family

    def _bounded(self, kind: str, name: str) -> str:
        return self._names[kind].bounded(name)


def _of[M: (Counter, Histogram)](metric: M, labels: tuple[str, ...]) -> M:
    """Return the series of a server, or the only one."""
    return metric.labels(*labels) if labels else metric


class WithoutTools:
    """The same metrics, with one series for all tools."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            if any({_TOOL, _NAME} & sample.labels.keys() for sample in family.samples):
                family.samples = list(_added_up(family.samples))
            yield family


def _added_up(samples: Iterable[Sample]) -> Iterator[Sample]:
    sums: dict[tuple[object, ...], Sample] = {}
    for sample in samples:
        labels = {
            name: value for name, value in sample.labels.items() if name not in (_TOOL, _NAME)
        }
        key = (sample.name, *labels.items())
        known = sums.get(key)
        # A series begins when the first of its tools is called.
        add = min if sample.name.endswith("_created") else operator.add
        value = add(known.value, sample.value) if known else sample.value
        sums[key] = sample._replace(labels=labels, value=value)
    yield from sums.values()


def serve_metrics(
    metrics: Metrics, at: MetricsAt, hosts: AllowedHosts | None, say: Callable[[str], None]
) -> Callable[[], None]:
    """Serve them until the function that is returned is called; say where if the user cannot know
    it. Raises StartError."""
    server = MetricsServer(metrics, at, hosts)
    if not at.port:  # any free port
        say(f"Metrics: http://{address_of(at.host, server.port)}/metrics")
    return server.close


_PATIENCE = 5.0  # seconds: a client that restarts us quickly may start us before the old one ends


class MetricsServer:
    """Serves them in its own thread until closed. Raises StartError if the port is taken."""

    def __init__(self, metrics: Metrics, at: MetricsAt, hosts: AllowedHosts | None = None) -> None:
        """``hosts`` may ask for ``/metrics``: a page whose name resolves to us must not read it."""
        self._metrics, self._at = metrics, at
        self._hosts = hosts or AllowedHosts()
        self._begun: Future[tuple[int, Callable[[], object]]] = Future()
        self._thread = Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()
        try:
            self.port, self._stop = self._begun.result()
        except OSError as error:
            what = f"Cannot serve metrics on {address_of(at.host, at.port)}"
            raise StartError(what, why=reason_of(error)) from None

    def close(self) -> None:
        self._stop()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._begun.set_exception(error)

    async def _serve(self) -> None:
        async with http_server(
            self._answer,
            host=self._at.host,
            port=self._at.port,
            judge_head=self._judge_head,
            limits=PAGE_LIMITS,
            patience=_PATIENCE,
        ) as server:
            loop, stop = asyncio.get_running_loop(), asyncio.Event()
            self._begun.set_result((server.port, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    async def _answer(self, request: ServedRequest) -> ServedResponse:
        match request.path:
            case "/metrics":
                from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

                kind = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
                registry = self._metrics.registry
                shown = registry if self._is_known(request) else WithoutTools(registry)
                return ServedResponse(200, kind, generate_latest(cast("CollectorRegistry", shown)))
            case "/healthz" | "/livez":
                return _plain(200, b"ok\n")
            case "/readyz":
                is_ready = bool(self._metrics.state().get("ready"))
                return _plain(200, b"ready\n") if is_ready else _plain(503, b"not ready\n")
            case _:
                return _plain(404, b"/metrics /livez /readyz\n")

    def _is_known(self, request: ServedRequest) -> bool:
        """Tell whether a request brings the token; without a token, none does."""
        token = self._at.token.encode()
        values = [value for name, value in request.headers if name == b"authorization"]
        scheme, _, brought = (values[0] if len(values) == 1 else b"").partition(b" ")
        is_bearer = scheme.lower() == b"bearer"
        return hmac.compare_digest(brought.strip(), token) and is_bearer and bool(token)

    def _judge_head(self, request: ServedRequest) -> ServedResponse | None:
        if request.method not in ("GET", "HEAD"):
            return _plain(405, b"Method not allowed\n")
        if request.path in _PROBES or comes_from_here(request, self._hosts):
            return None
        return _plain(403, b"Forbidden: --allowed-hosts does not name this Host\n")


def _plain(status: int, body: bytes) -> ServedResponse:
    return ServedResponse(status, [(b"content-type", _PLAIN)], body)


def address_of(host: str, port: int) -> str:
    return f"{f'[{host}]' if ':' in host else host}:{port}"
