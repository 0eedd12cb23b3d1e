r"""Search a name for a pattern, in the cheapest way that is exact for that pattern.

That is Python's ``re`` if the name is short and ``re`` is safe for the pattern. Otherwise a pattern
that refers back to a group is matched by backtracking, and any other in one pass.

A finder finds where a pattern matches, in order to replace what it matches:

>>> from jsregex.syntax import parse_regex
>>> PatternFinder(parse_regex(r"sk-\w+|\d{4}")).find("a sk-abc and 12345")
[(2, 8), (13, 17)]

One pass from the end of the text finds every place where a match begins. Only at these places do we
match as JavaScript does, to learn where the match ends. So a text without a match costs one pass,
however long it is.

There may be a text that every match of a pattern must contain:

>>> from jsregex.syntax import parse_regex
>>> [required_text(parse_regex(text).root) for text in (r"^/etc/.*\.key$", "a|b", "x+yz")]
['/etc/', '', 'yz']

Searching for it is much faster than matching, and most texts do not contain it.

Python's ``re`` is fast, but it backtracks and holds the GIL:

>>> render_python(parse_regex(r"^(?!read_)\w+$").root)
'\\A(?!read_)[0-9A-Z_a-z]+\\Z'

We render only patterns that ``re`` matches exactly as JavaScript does, and quickly: at most one
loop (the search itself is one), or two if the pattern refers back to a group and is short; no
look-behind. Sets are spelt out, because ``\w``, ``\s``, ``.`` and ``$`` mean other things in
Python. A reference to a group without a capture matches the empty text:

>>> render_python(parse_regex(r"(?:(a)|b)\1(?!(c))\2").root)
'(?:(a)|b)(?(1)\\1)(?!(c))'
"""

from __future__ import annotations

import re
from collections import abc
from functools import cached_property

from jsregex.automaton import Alphabet
from jsregex.backtrack import Backtracker
from jsregex.cost import (
    FOR_A_NAME,
    LONGEST_NAME,
    MOST_STEPS,
    Budget,
    TooCostly,
    most_scan_steps,
    most_steps,
)
from jsregex.program import (
    LONGEST_COUNT,
    Program,
    captures_of,
    code_size,
    compile_program,
)
from jsregex.safety import count_loops, count_ways
from jsregex.scan import Scan
from jsregex.syntax import Regex
from jsregex.tree import (
    EVERYTHING,
    LAST_UNIT,
    WORD,
    Alternation,
    CharSet,
    Edge,
    Group,
    Look,
    Node,
    Reference,
    Repeat,
    Sequence,
    Unit,
    anchored,
    as_word,
    branches,
    fold_text,
    groups_referred_to,
    invert,
    least_length,
    to_units,
    walk,
    without_other_groups,
)

_PRICE_OF_REFERENCES = 16  # ``re`` takes longer for a pattern that refers back to a group


class Matcher:
    """Searches for one pattern. It builds its parts when needed: most never see a long name."""

    def __init__(self, regex: Regex, longest: int = FOR_A_NAME) -> None:
        """``longest`` limits the characters of a text, and the steps for it without a budget."""
        self._regex = regex
        self._longest = longest

    def search(self, name: str, budget: Budget | None = None) -> bool:
        """Tell whether the pattern matches anywhere. Raises TooCostly.

        With a budget, its steps are spent.
        """
        if len(name) > self._longest:
            raise TooCostly
        text = fold_text(to_units(name)) if self._regex.ignore_case else to_units(name)
        if len(text) <= LONGEST_NAME and self._python:
            price = _PRICE_OF_REFERENCES if self._refers_back else 1
            if budget is None or budget.may_be_quick(price):
                return self._python.search(text) is not None
        limit = self._program.exact_up_to
        if limit is not None and len(text) > limit:
            raise TooCostly
        budget = budget or Budget(self._longest)
        if self._refers_back:
            return self._backtracker.search(text, budget)
        return self._scan.search(self._alphabet.read(text), budget)

    def is_affordable(self) -> bool:
        """Tell whether every name that may be exposed can be judged within the allowance."""
        if self._python:
            return True
        is_anchored = anchored(self._root)
        if self._refers_back:
            captures = captures_of(self._regex.groups)
            return most_steps(self._program, captures=captures, anchored=is_anchored) <= MOST_STEPS
        if 2 * LONGEST_NAME * code_size(self._root, longest=LONGEST_NAME) <= FOR_A_NAME:
            return True  # nearly every pattern, and no program was built
        return most_scan_steps(self._program, self._alphabet, anchored=is_anchored) <= FOR_A_NAME

    @cached_property
    def _python(self) -> re.Pattern[str] | None:
        source = render_python(self._root)
        return None if source is None else re.compile(source)

    @cached_property
    def _root(self) -> Node:
        kept = groups_referred_to(self._regex.root)
        return without_other_groups(self._regex.root, kept) if kept else self._regex.root

    @cached_property
    def _refers_back(self) -> bool:
        return bool(groups_referred_to(self._regex.root))

    @cached_property
    def _alphabet(self) -> Alphabet:
        return alphabet_of(self._regex.root)

    @cached_property
    def _program(self) -> Program:
        return compile_program(
            self._root,
            for_scan=not self._refers_back,
            groups=self._regex.groups,
            longest=LONGEST_NAME if self._longest == FOR_A_NAME else LONGEST_COUNT,
        )

    @cached_property
    def _backtracker(self) -> Backtracker:
        return Backtracker(
            self._program,
            self._alphabet,
            captures=captures_of(self._regex.groups),
            anchored=anchored(self._root),
            remembers=True,
        )

    @cached_property
    def _scan(self) -> Scan:
        return Scan(self._program, self._alphabet, anchored=anchored(self._root))


def alphabet_of(root: Node) -> Alphabet:
    return Alphabet([WORD, *(node.chars for node in walk(root) if isinstance(node, Unit))])


class PatternFinder:
    """Finds the matches of one pattern."""

    def __init__(self, regex: Regex) -> None:
        self._ignore_case = regex.ignore_case
        self._alphabet = alphabet_of(regex.root)
        whole = compile_program(Group(regex.root, 0), for_scan=False, groups=regex.groups)
        self._exact_up_to = whole.exact_up_to
        captures = captures_of(regex.groups)
        self._backtracker = Backtracker(whole, self._alphabet, captures=captures)
        self._starts: Scan | None = None
        if not any(isinstance(node, Reference) for node in walk(regex.root)):
            backward = compile_program(regex.root, for_scan=True, backward=True)
            self._starts = Scan(backward, self._alphabet, tabulates=True)

    def find(self, units: str, budget: Budget | None = None) -> list[tuple[int, int]]:
        """Return where the matches begin and end, in UTF-16 code units. Raises TooCostly.

        With a budget, its steps are spent.
        """
        if self._exact_up_to is not None and len(units) > self._exact_up_to:
            raise TooCostly
        if self._ignore_case:
            units = fold_text(units)
        budget = budget or Budget()
        places: abc.Sequence[int] = range(len(units))
        if self._starts is not None:
            table = self._starts.table(self._alphabet.read(units), budget)
            places = [at for at, begins in enumerate(table) if begins]
        return list(self._backtracker.find(units, places, budget)) if places else []


def required_text(root: Node) -> str:
    """Return the longest such text that is easy to determine; empty if there is none."""
    runs = [""]
    for node in _in_line(root):
        if isinstance(node, Unit) and (char := as_word(node)) and char.isascii():
            runs[-1] += char
        elif not isinstance(node, Edge):
            runs.append("")
    return max(runs, key=len)


def _in_line(node: Node) -> list[Node]:
    if isinstance(node, Group):
        return _in_line(node.body)
    if isinstance(node, Sequence):
        return [inner for item in node.items for inner in _in_line(item)]
    return [node]


_FEW_WAYS = 100
_FEW_STEPS = 120  # 256 x 256 / 2 times so many take 50 ms at most
_STEPS_OF_REFERENCE = 15
_IS_WORD = "[0-9A-Z_a-z]"
_EDGES = {
    Edge.START: r"\A",
    Edge.END: r"\Z",
    Edge.WORD: rf"(?:(?<={_IS_WORD})(?!{_IS_WORD})|(?<!{_IS_WORD})(?={_IS_WORD}))",
    Edge.NOT_WORD: rf"(?:(?<={_IS_WORD})(?={_IS_WORD})|(?<!{_IS_WORD})(?!{_IS_WORD}))",
}


def render_python(root: Node) -> str | None:
    """Return the pattern for ``re``, or None if ``re`` would be wrong or slow."""
    if any(isinstance(node, Look) and node.behind for node in walk(root)):
        return None
    if referred := groups_referred_to(root):
        return _render_with_references(root, referred)
    root = _without_optional_ends(root)
    loops = count_loops(root)
    if loops is None or loops + (not anchored(root)) > 1 or count_ways(root) > _FEW_WAYS:
        return None
    return _Renderer(frozenset()).render(root)


def _render_with_references(root: Node, referred: frozenset[int]) -> str | None:
    """Return the pattern, or None if captures would last longer in Python than in JavaScript.

    In JavaScript each round of a repetition forgets the captures of the round before, and an
    optional round must not be empty.
    """
    repeated = {
        group.number
        for repeat in branches(root)
        if isinstance(repeat, Repeat)
        if repeat.most not in (0, 1) or not least_length(repeat.body)
        for group in walk(repeat.body)
        if isinstance(group, Group)
    }
    if repeated & referred:
        return None
    loops = count_loops(root, over=(Unit, Reference))
    if loops is None or loops + (not anchored(root)) > 2:
        return None
    references = sum(isinstance(node, Reference) for node in walk(root))
    steps = count_ways(root) * (code_size(root) + _STEPS_OF_REFERENCE * references)
    if steps > _FEW_STEPS:
        return None
    return _Renderer(referred).render(root)


def _without_optional_ends(root: Node) -> Node:
    """Return ``x`` for ``.*x.*``: whether a text contains an x does not depend on the ends.

    A repetition at an end needs only its mandatory rounds, because a search may begin and end
    anywhere.
    """
    if isinstance(root, Alternation):
        return Alternation(tuple(_without_optional_ends(option) for option in root.options))
    items = list(root.items) if isinstance(root, Sequence) else [root]
    for end in (0, -1):
        while items:
            item = items[end]
            if not isinstance(item, Repeat) or item.most == item.least:
                break
            items[end] = Repeat(item.body, item.least, item.least)
            if item.least:
                break
            del items[end]
    return Sequence(tuple(items))


class _Renderer:
    """Renders from left to right, and knows which groups may have a capture at each point."""

    def __init__(self, referred: frozenset[int]) -> None:
        self._referred = referred
        self._names: dict[int, int] = {}  # Python's number of each closed group
        self._opened = 0

    def render(self, node: Node) -> str:
        match node:
            case Unit(chars):
                return _render_set(chars)
            case Sequence(items):
                return "".join([self.render(item) for item in items])
            case Alternation(options):
                return f"(?:{'|'.join([self.render(option) for option in options])})"
            case Repeat():
                return self._render_repeat(node)
            case Group(body, number):
                return self._render_group(body, number)
            case Look(body, _, negated):
                return self._render_look(body, negated=negated)
            case Edge():
                return _EDGES[node]
            case Reference(number):
                name = self._names.get(number)
                return "" if name is None else f"(?({name})\\{name})"

    def _render_group(self, body: Node, number: int) -> str:
        if number not in self._referred:
            return f"(?:{self.render(body)})"
        self._opened += 1
        name = self._opened
        text = self.render(body)
        self._names[number] = name
        return f"({text})"

    def _render_look(self, body: Node, *, negated: bool) -> str:
        before = dict(self._names)
        text = self.render(body)
        if negated:  # after a negated look succeeds, its groups have no captures
            self._names = before
        return f"(?{'!' if negated else '='}{text})"

    def _render_repeat(self, node: Repeat) -> str:
        if node.most == 0:
            return ""  # its groups never capture anything
        body = self.render(node.body)
        if not isinstance(node.body, Unit):
            body = f"(?:{body})"
        count = f"{{{node.least},{'' if node.most is None else node.most}}}"
        lazy = "?" if node.lazy and self._referred else ""  # it matters in a look-ahead
        return body + {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}.get(count, count) + lazy


def _render_set(chars: CharSet) -> str:
    if not chars:
        return "(?!)"
    if chars == EVERYTHING:
        return r"[\s\S]"
    if chars[-1][1] == LAST_UNIT:  # re compiles a negated set twenty times as fast as a long one
        return f"[^{_render_ranges(invert(chars))}]"
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return re.escape(chr(chars[0][0]))
    return f"[{_render_ranges(chars)}]"


def _render_ranges(chars: CharSet) -> str:
    return "".join(
        [
            _render_char(low) + (f"-{_render_char(high)}" if low < high else "")
            for low, high in chars
        ]
    )


def _render_char(code: int) -> str:
    char = chr(code)
    plain = char == "_" or (char.isascii() and char.isalnum())
    return char if plain else f"\\u{code:04x}"
