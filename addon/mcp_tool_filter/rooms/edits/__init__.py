"""Edit what cannot be changed at the server: names, texts, hints, parameters and schemas of tools.

For whom: users whose server says the wrong thing about a tool, or whose client refuses its schema.
Where it plugs in: ``apply`` adds the edits to the configuration, ``Editing`` is the editor of a
site's policy (``PolicyInForce.editor``), and ``TableOfEdits`` vouches for hints in ``Choice``.
Policy judges the server's own names and definitions, so that no edit can expose a hidden tool;
only ``hints`` may, which is their purpose.
What it costs: nothing without edits. With them each call is looked up once; a list is edited once
and remembered. It imports tomllib only to read a file of edits.
"""
