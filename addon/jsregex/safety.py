r"""Tell whether backtracking over a pattern could take forever.

>>> from jsregex.syntax import parse_regex
>>> [is_safe(parse_regex(text).root) for text in ("^(?:ab|ac)*$", "^(?:ab|a|b)*$", "^(a+)+$")]
[True, False, False]

Three things are refused:

- unbounded repetition inside unbounded repetition, ``(a+)+``, even where it could never fail;
- two different ways round the same loop over the same text, ``(a|a)*``: every round doubles the
  number of ways (exponential ambiguity, EDA in the literature);
- four or more consecutive loops that could share the same text, ``\w*_\w*_\w*_\w*``: n characters
  can be shared in n⁴ ways (polynomial ambiguity, IDA). A pattern that may match anywhere counts as
  having one more such loop before it.

A matcher backtracks only after a failure, so repetition after the last point of failure is
harmless. (Weber and Seidl, "On the degree of ambiguity of finite automata", 1991; Weideman et al.,
"Analyzing matching time behavior of backtracking regular expression matchers", 2016.)

The cost is limited: where a proof would take more than a fixed number of steps, the pattern counts
as unsafe, so a hostile pattern cannot stall the start.

Two consecutive loops can share a text in many ways if some text leads round the first, on to the
second, and round that. But if repeating that text makes the pattern match, a matcher never
backtracks: ``.*a.*a.*a`` fails only on texts with at most two a's, and those leave little to share.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import combinations, product
from math import inf, log, prod

from jsregex.automaton import SMALL, Automaton, TooManyEdges, bits_of, follow
from jsregex.program import code_size
from jsregex.tree import (
    Alternation,
    Group,
    Look,
    Node,
    Repeat,
    Sequence,
    Unit,
    anchored,
    as_word,
    branches,
    children,
    depth,
    visit,
)

type _Text = tuple[int, ...]  # the possible letters at each place, as bits

_MOST_STEPS_TO_SHARE = 500  # two loops count as sharing when judging them would need more than this
_FEW_STEPS = 12  # the same, where each step costs more
_MOST_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Two loops, and a place in each where a text that they share would begin and end."""

    automaton: Automaton
    loop: set[int]
    later: set[int]
    start: int
    end: int

    def can(self) -> bool:
        """Tell whether some text leads round the loop, on to the later one, and round that."""
        automaton, text = self.automaton, self._find_text()
        if text is None:
            return False
        if automaton.conditional or not automaton.succeeding:
            return True
        return not _succeeds(automaton, self.start, text) or self._can_fail()

    def _find_text(self) -> _Text | None:
        """Return a shortest text that the loops can share."""
        letters, following = self.automaton.letters, self.automaton.following
        start, end = self.start, self.end
        waiting: deque[tuple[int, int, int, _Text]] = deque([(start, start, end, ())])
        seen = {(start, start, end)}
        while waiting:
            one, between, other, text = waiting.popleft()
            if len(seen) > _MOST_STEPS_TO_SHARE:
                return text
            ones = [place for place in following[one] if place in self.loop]
            others = [place for place in following[other] if place in self.later]
            for triple in product(ones, following[between], others):
                common = letters[triple[0]] & letters[triple[1]] & letters[triple[2]]
                if triple == (start, end, end) and common:
                    return (*text, common & -common)
                if common and triple not in seen:
                    seen.add(triple)
                    waiting.append((*triple, (*text, common & -common)))
        return None

    def _can_fail(self) -> bool:
        """Tell whether the loops can share a text whose repetition never makes the pattern match.

        Each repetition leads to more places, until there are no new ones. So we look for a text
        that leads from all these places back to the same places.
        """

        def onward(state: tuple[int, frozenset[int]]) -> Iterator[tuple[int, frozenset[int]]]:
            for bit, reached in self._failing_steps(state[1]):
                for place in self._go(state[0], self.loop, bit):
                    yield place, reached

        seen = {(self.start, frozenset({self.start}))}
        return any(
            len(seen) > _FEW_STEPS
            or (one == self.start and self.end in places and self._leads_back(places))
            for one, places in visit(seen, onward)
        )

    def _leads_back(self, places: frozenset[int]) -> bool:
        """Tell whether some text that the loops can share leads from these places back to them."""
        type Way = tuple[int, int, int, frozenset[int]]

        def onward(way: Way) -> Iterator[Way]:
            one, between, other, now = way
            for bit, reached in self._failing_steps(now):
                ones, others = self._go(one, self.loop, bit), self._go(other, self.later, bit)
                for step in product(ones, self._go(between, reached, bit), others):
                    yield (*step, reached)

        seen: set[Way] = {(self.start, self.start, self.end, places)}
        back: Way = (self.start, self.end, self.end, places)
        return any(way == back or len(seen) > _FEW_STEPS for way in visit(seen, onward))

    def _failing_steps(self, places: frozenset[int]) -> Iterator[tuple[int, frozenset[int]]]:
        """Yield each letter that does not make the pattern match, and where it leads."""
        for letter in range(self.automaton.alphabet.size):
            reached = _step(self.automaton, places, 1 << letter)
            if not reached & self.automaton.succeeding:
                yield 1 << letter, reached

    def _go(self, place: int, within: Set[int], letter: int) -> list[int]:
        onward = self.automaton.following[place]
        return [to for to in onward if to in within and self.automaton.letters[to] & letter]


def _succeeds(automaton: Automaton, start: int, text: _Text) -> bool:
    """Tell whether repeating the text leads from a position to a successful match."""
    places = frozenset({start})
    before: set[frozenset[int]] = set()
    while places not in before and len(before) < _MOST_ROUNDS:
        before.add(places)
        for letter in text:
            places = _step(automaton, places, letter)
            if places & automaton.succeeding:
                return True
    return False


def _step(automaton: Automaton, places: frozenset[int], letter: int) -> frozenset[int]:
    onward = {place for start in places for place in automaton.following[start]}
    return frozenset(place for place in onward if automaton.letters[place] & letter)


_FEW_LOOPS = 3  # so many consecutive loops are always safe
_TOO_HIGH = 3.3  # refused from here: degree 4, and nearly 4 (four loops of a hundred rounds)
_LENGTH = 256  # the longest name: as many rounds as an unbounded loop can make
_FEW_WAYS = 5_000  # so many ways can all be tried
_DEEPEST = 200
_MOST_STEPS = 20_000  # of the matching program
_MOST_PAIRS = 20_000  # a pattern counts as ambiguous when judging it would need more than this
_ROUNDS = 30
_LONGEST_TEXT = 100


def is_safe(root: Node) -> bool:
    """Tell whether a backtracking matcher may use the pattern."""
    if depth(root) > _DEEPEST or code_size(root) > _MOST_STEPS or has_nested_loops(root):
        return False
    has_few_ways = count_ways(root) <= _FEW_WAYS
    loops = count_loops(root)
    # The quick answer for most patterns: few loops, each over one set, and few ways.
    if has_few_ways and loops is not None and loops + (not anchored(root)) <= _FEW_LOOPS:
        return True
    try:
        automaton = follow(root, search=not anchored(root))
        return _degree(automaton, has_few_ways=has_few_ways) < _TOO_HIGH
    except TooManyEdges:
        return False


def has_nested_loops(root: Node) -> bool:
    """Tell whether an unbounded repetition is inside another."""
    return any(
        isinstance(inner, Repeat) and inner.most is None
        for outer in branches(root)
        if isinstance(outer, Repeat) and outer.most is None
        for inner in branches(outer.body)
    )


def count_loops(root: Node, *, over: tuple[type[Node], ...] = (Unit,)) -> int | None:
    """Return how many loops a match goes through at most; None if a loop repeats more than one set.

    ``over`` names what a loop may repeat.
    """
    loops = 0
    waiting = [(root, 1)]
    while waiting:
        node, times = waiting.pop()
        if isinstance(node, Repeat):
            if node.most is None or node.most > SMALL:
                if not isinstance(node.body, over):
                    return None
                loops += times
                continue
            times *= node.most
        waiting += [(child, times) for child in children(node) if type(child) is not Unit]
    return loops


def count_ways(node: Node) -> int:
    """Return a bound on the ways through a pattern without its loops, capped above "too many"."""
    return min(_count_ways(node), 10 * _FEW_WAYS)


def _count_ways(node: Node) -> int:
    match node:
        case Sequence(items):
            return prod([count_ways(item) for item in items if not isinstance(item, Unit)])
        case Alternation(options):
            return _ways_of_choice(options)
        case Repeat(body, least, most):
            ways = count_ways(body)
            if most is None or most > SMALL:
                return ways
            return sum([ways**rounds for rounds in range(least, most + 1)])
        case Group(body) | Look(body):
            return count_ways(body)
        case _:
            return 1


def _ways_of_choice(options: tuple[Node, ...]) -> int:
    """Count the ways: words match at the same place only if one begins with the other."""
    words: Counter[str] = Counter()
    others = 0
    for option in options:
        word = as_word(option)
        if word is None:
            others += count_ways(option)
        else:
            words[word] += 1
    lengths = {len(word) for word in words}
    beginnings = [
        sum([words[word[:length]] for length in lengths if length <= len(word)]) for word in words
    ]
    return others + max(beginnings, default=0)


def _degree(automaton: Automaton, *, has_few_ways: bool) -> float:
    """Return the degree of the polynomial that bounds the ways; inf if they grow exponentially."""
    loops = _loops(automaton)
    if any(_is_exponential(automaton, loop) for loop in loops):
        return inf
    if not has_few_ways and _most_ways(automaton, loops) > _FEW_WAYS:
        return inf
    if not automaton.others and len(loops) <= _FEW_LOOPS:
        return len(loops)
    degree = _longest_chain(automaton, loops)
    others = [
        _degree(follow(look.body, backward=look.behind, search=False), has_few_ways=has_few_ways)
        for look in automaton.others
    ]
    return degree + max(others, default=0)


def _loops(automaton: Automaton) -> list[set[int]]:
    """Return the sets of positions that lead to one another, the last ones first.

    Positions that cannot be reached, as in ``$(a|a)*``, are left out, and so are those from which
    the match certainly succeeds: a matcher never backtracks from there.
    """
    reached = _reach(automaton, set(automaton.first))
    graph = [
        [other for other in following if other not in automaton.succeeding]
        for following in automaton.following
    ]
    return [
        component
        for component in _components(graph)
        if component <= reached - automaton.succeeding
        and (len(component) > 1 or min(component) in graph[min(component)])
    ]


def _components(graph: list[list[int]]) -> list[set[int]]:
    """Return the strongly connected components, those that others lead to first.

    (Kosaraju: from the node that is last in the postorder of the reversed graph, only nodes of its
    own component can be reached, and those of components that are done.)
    """
    backward: list[list[int]] = [[] for _ in graph]
    for node, onward in enumerate(graph):
        for other in onward:
            backward[other].append(node)
    components: list[set[int]] = []
    done: set[int] = set()
    for start in reversed(_in_postorder(backward)):
        if start not in done:
            component = set(visit({start}, lambda node: set(graph[node]) - done))
            components.append(component)
            done.update(component)
    return components


def _in_postorder(graph: list[list[int]]) -> list[int]:
    """Return the nodes of a graph, each after those that it leads to (except round a loop)."""
    order: list[int] = []
    seen: set[int] = set()
    waiting = list(range(len(graph)))
    while waiting:
        node = waiting.pop()
        if node < 0:
            order.append(~node)
        elif node not in seen:
            seen.add(node)
            waiting += [~node, *graph[node]]
    return order


def _is_exponential(automaton: Automaton, loop: set[int]) -> bool:
    """Tell whether two ways over the same text lead from a position of the loop back to it."""
    if not _has_two_ways(automaton, loop):
        return False
    # Two ways do no harm where nothing can fail: ^(?:.|\s)*$ matches every text.
    failing = {position for position in loop if not _always_succeeds(automaton, position)}
    return _has_two_ways(automaton, failing)


def _has_two_ways(automaton: Automaton, loop: set[int]) -> bool:
    letters = automaton.letters
    following = {
        position: [other for other in automaton.following[position] if other in loop]
        for position in loop
    }
    if any(automaton.following[one][other] > 1 for one in loop for other in following[one]):
        return True
    seen: set[tuple[int, int]] = set()
    for position in loop:
        waiting = list(combinations(following[position], 2))  # where two ways part
        while waiting:
            one, other = waiting.pop()
            pair = (one, other) if one < other else (other, one)
            if pair in seen or not letters[one] & letters[other]:
                continue
            if one == other or len(seen) > _MOST_PAIRS:
                return True
            seen.add(pair)
            waiting += product(following[one], following[other])
    return False


def _most_ways(automaton: Automaton, loops: list[set[int]]) -> int:
    """Return in how many ways one position can be reached over the same text, without loops.

    ``(a|a)(a|a)(a|a)…`` is slow without any loop. We build the worst text greedily: each next
    letter is the one that keeps most ways open.
    """
    loop_of = {position: number for number, loop in enumerate(loops) for position in loop}
    graph = [
        {
            other: ways
            for other, ways in following.items()
            if other not in automaton.succeeding
            and (position not in loop_of or loop_of.get(other) != loop_of[position])
        }
        for position, following in enumerate(automaton.following)
    ]
    letters = [bits_of(letters) for letters in automaton.letters]
    always = dict.fromkeys(loop_of, 1)
    reached: dict[int, int] = automaton.first | always
    before: dict[int, int] = {}
    most = max([automaton.ways_round, *automaton.first.values()])
    for _ in range(_LONGEST_TEXT):
        if reached == before or most > _FEW_WAYS:
            break
        by_letter: dict[int, dict[int, int]] = {}
        for position, ways in reached.items():
            for other, ways_on in graph[position].items():
                for letter in letters[other]:
                    after = by_letter.setdefault(letter, {})
                    after[other] = after.get(other, 0) + ways * ways_on
        best = max(by_letter.values(), key=lambda after: sum(after.values()), default={})
        most = max([most, *best.values()])
        before, reached = reached, always | best
    return most


def _always_succeeds(automaton: Automaton, position: int) -> bool:
    """Tell whether a match succeeds from this position whatever text follows."""
    if automaton.conditional:
        return False

    def onward(places: frozenset[int]) -> Iterator[frozenset[int]]:
        if not places & automaton.succeeding:
            for letter in range(automaton.alphabet.size):
                yield _step(automaton, places, 1 << letter)

    seen = {frozenset({position})}
    return all(
        places & automaton.succeeding or (places & automaton.ending and len(seen) <= _ROUNDS)
        for places in visit(seen, onward)
    )


def _longest_chain(automaton: Automaton, loops: list[set[int]]) -> float:
    """Return how many consecutive loops share text, each with the one before it.

    Three that share one text and two that share another make four: the sharing adds up.
    """
    weights = [_weight(automaton, loop) for loop in loops]
    longest: list[float] = []
    for number, loop in enumerate(loops):  # loops that this one leads to come earlier
        reached = _reach(automaton, loop)
        degree = weights[number]
        for other, later in enumerate(loops[:number]):
            possible = longest[other] + weights[number]
            if possible > degree and not reached.isdisjoint(later):
                places = product(loop, later)
                shares = any(_Sharing(automaton, loop, later, *both).can() for both in places)
                degree = max(degree, possible if shares else longest[other])
            if degree >= _TOO_HIGH:
                return degree
        longest.append(degree)
    return max(longest, default=0)


def _weight(automaton: Automaton, loop: set[int]) -> float:
    rounds = max([automaton.rounds[position] for position in loop])
    return min(1, log(rounds + 1, _LENGTH))


def _reach(automaton: Automaton, starts: set[int]) -> set[int]:
    return set(visit(set(starts), lambda position: automaton.following[position]))
