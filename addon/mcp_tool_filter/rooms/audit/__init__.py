"""The audit log, and what people read in the terminal: what happened to each message.

For whoever must be able to show later what a client has done (``--audit-log FILE``), and for the
lines of a running filter. ``entries`` observes messages and makes an entry of each;
``entries.AuditLine`` declares every member once, and ``schema`` derives the JSON schema from it.
``audit_log`` writes the lines in a thread, chained by hashes. ``activity`` shows entries in the
terminal. ``command`` and ``summary`` are ``mcp-tool-filter audit``. The room ``telemetry`` plugs
the auditor in as an observer. No message waits for the log: a call costs some ten microseconds,
when its entry is made a moment later.
"""
