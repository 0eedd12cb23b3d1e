"""tools.lock: only the definitions that a person has approved are exposed.

For teams that want to see what a server has changed before a model does. ``lock`` has the form of
the file and judges a definition; ``lock_file`` reads and writes it; ``changes`` finds what two
definitions have different and what that introduces, ``shown_changes`` writes it for people, JSON
and SARIF. ``command`` is ``mcp-tool-filter lock``. It plugs in as ``Choice.lock`` (``with_lock``),
and as a ``Plug`` that reads the file again at SIGHUP. Without ``--lock``, nothing is imported; with
it, each list compares each definition with the approved one.
"""
