"""Metrics and traces of a running filter, and the observer that feeds all of them.

For operators: ``metrics`` serves Prometheus and the probes (``--metrics-port``), ``tracing`` and
``otlp`` send spans, metrics and entries to an OpenTelemetry collector (``--otel``). ``watchers`` is
the plug: it makes an ``Auditor`` of the room ``audit`` an observer of each site, and gives its
entries to whoever wants them (``watching``). Metrics need ``prometheus_client`` and traces
``opentelemetry``; each is imported only if its option is set. Without any of them, and without a
terminal or page, nothing observes.
"""
