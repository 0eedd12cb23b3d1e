"""JavaScript regexes without JavaScript: read, checked for safety, matched.

``syntax`` reads a pattern into a ``tree``; ``ambiguity`` says whether backtracking over it could
blow up; ``matcher`` searches a name, in the cheapest way that is exact for this pattern.
"""
