"""Hide prompts, resources and skills, as the core hides tools.

For users whose server offers more than tools (``--deny-prompts``, ``--deny-resources``,
``--deny-skills``). ``catalog`` judges messages: it is ``Situation.catalog``, which the tool filter
asks about what it lets pass; the table of rooms makes it (``with_catalog``). ``uris`` finds all
that a server could take a URI for. Nothing is pinned: the patterns alone decide. Without these
options it is not imported; with them, a URI with escapes costs some hundred microseconds.
"""
