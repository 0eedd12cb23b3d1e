"""Rules on messages: block them, change them, limit, cache and report them.

For users whose policy needs more than names of tools (``--rules FILE``). ``source`` and ``forms``
read the file into a ``policy``, from the tables in ``conditions`` and ``actions``. ``judge`` is the
link of the chain after the tool filter; it runs a message through the ``chain``. What that needs
from outside is a value (``rule_effects``), which ``host`` carries out: ``webhooks``, ``scripts``,
``callables``, ``copies``, ``state``. It plugs in as a ``Plug`` (``serving``), which attaches the
link to each site. ``command`` is ``mcp-tool-filter rules``. Without a file, nothing is imported; a
message that no rule reads costs a look into an index.
"""
