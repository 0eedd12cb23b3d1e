"""JavaScript regexes in Python: parse them, prove them safe, match them.

``syntax`` parses a pattern into a ``tree``; ``safety`` tells whether backtracking over it could
blow up; ``matcher`` searches a name in the cheapest way that is exact for this pattern.
"""
