r"""Says whether backtracking over a pattern could take forever.

>>> [is_safe(parse_regex(text).root) for text in ("^(?:ab|ac)*$", "^(?:ab|a|b)*$", "^(a+)+$")]
[True, False, False]

Three things are refused:

- nested repetition without end, ``(a+)+``: whether it can fail or not, nobody should have to ask;
- two different ways round the same loop over the same text, ``(a|a)*``: with every round the ways
  double (exponential ambiguity, EDA in the literature);
- four loops or more one after the other that could share the same text, ``\w*_\w*_\w*_\w*``: with
  n characters there are n⁴ ways to share (polynomial ambiguity, IDA). A pattern that may begin
  anywhere has one such loop before it.

Where nothing can fail any more no way is tried again, so what is repeated there does not matter.
(Weber and Seidl, "On the degree of ambiguity of finite automata", 1991; Weideman et al.,
"Analyzing matching time behavior of backtracking regular expression matchers", 2016.)
"""

from __future__ import annotations

from math import inf, log, prod

from mcp_tool_filter.policy.regex.positions import SMALL, Automaton, follow
from mcp_tool_filter.policy.regex.program import code_size
from mcp_tool_filter.policy.regex.syntax import parse_regex as parse_regex  # for the example
from mcp_tool_filter.policy.regex.tree import (
    Choice,
    Group,
    Look,
    Node,
    Repeat,
    Sequence,
    Unit,
    anchored,
    children,
    depth,
    walk,
)

_TOO_HIGH = 4  # the degree that is refused
_LENGTH = 256  # of a name: what a loop without end amounts to
_DEEPEST = 200
_MOST_STEPS = 20_000  # of the program that matches
_MOST_PAIRS = 20_000
_FEW_WAYS = 5_000


def is_safe(root: Node) -> bool:
    """Say whether a pattern may be used by a matcher that backtracks."""
    if depth(root) > _DEEPEST or code_size(root) > _MOST_STEPS or has_nested_loops(root):
        return False
    return _is_plainly_safe(root) or _degree(follow(root, search=not anchored(root))) < _TOO_HIGH


def has_nested_loops(root: Node) -> bool:
    """Say whether a repetition without end is within another."""
    waiting = [(root, False)]
    while waiting:
        node, inside = waiting.pop()
        loops = isinstance(node, Repeat) and node.most is None
        if loops and inside:
            return True
        waiting += [(child, inside or loops) for child in children(node)]
    return False


# Most patterns have few loops, each over one set, and no long way to go: no automaton is needed.


def _is_plainly_safe(root: Node) -> bool:
    loops = 0 if anchored(root) else 1
    for node in walk(root):
        if isinstance(node, Repeat) and (node.most is None or node.most > SMALL):
            if not isinstance(node.body, Unit):
                return False
            loops += 1
    return loops < _TOO_HIGH and _most_ways(root) <= _FEW_WAYS


def _most_ways(node: Node) -> float:
    """Return a bound on the ways through a pattern whose loops are all over one set."""
    match node:
        case Sequence(items):
            return prod([_most_ways(item) for item in items])
        case Choice(options):
            return _ways_of_choice(options)
        case Repeat(Unit(), least, most):
            return 1 if most is None or most > SMALL else most - least + 1
        case Repeat(body, least, most):
            ways = _most_ways(body)
            return sum([ways**rounds for rounds in range(least, (most or 0) + 1)])
        case Group(body) | Look(body):
            return _most_ways(body)
        case _:
            return 1


def _ways_of_choice(options: tuple[Node, ...]) -> float:
    """Of words to choose from only those can match that begin one another."""
    words: dict[tuple[Node, ...], int] = {}
    others = 0.0
    for option in options:
        items = option.items if isinstance(option, Sequence) else (option,)
        if all(isinstance(item, Unit) and item.chars[0][0] == item.chars[-1][1] for item in items):
            words[items] = words.get(items, 0) + 1
        else:
            others += _most_ways(option)
    return others + max([_count_beginnings(word, words) for word in words], default=0)


def _count_beginnings(word: tuple[Node, ...], words: dict[tuple[Node, ...], int]) -> int:
    lengths = {len(other) for other in words}
    return sum([words.get(word[:length], 0) for length in lengths if length <= len(word)])


# The others are judged by their automaton.


def _degree(automaton: Automaton) -> float:
    """Return the degree of the polynomial that bounds the ways; inf if none does."""
    loops = _loops(automaton)
    if any(_is_exponential(automaton, loop) for loop in loops):
        return inf
    degree = _longest_chain(automaton, loops)
    others = [
        _degree(follow(look.body, backward=look.behind, search=False)) for look in automaton.others
    ]
    return degree + max(others, default=0)


def _loops(automaton: Automaton) -> list[set[int]]:
    """Return the sets of positions that lead to one another, the last ones first.

    From a position where the match succeeds for certain, no way is ever tried again: such
    positions are left out.
    """
    graph = [
        [other for other in following if other not in automaton.succeeding]
        for following in automaton.following
    ]
    return [
        component
        for component in _components(graph)
        if component.isdisjoint(automaton.succeeding)
        and (len(component) > 1 or min(component) in graph[min(component)])
    ]


def _components(graph: list[list[int]]) -> list[set[int]]:
    """Return the strongly connected components, those that others lead to first (Tarjan)."""
    components: list[set[int]] = []
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for start in range(len(graph)):
        if start in index:
            continue
        calls = [(start, iter(graph[start]))]
        index[start] = low[start] = len(index)
        path.append(start)
        on_path.add(start)
        while calls:
            node, onward = calls[-1]
            for other in onward:
                if other not in index:
                    index[other] = low[other] = len(index)
                    path.append(other)
                    on_path.add(other)
                    calls.append((other, iter(graph[other])))
                    break
                if other in on_path:
                    low[node] = min(low[node], index[other])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[node])
                if low[node] == index[node]:
                    at = path.index(node)
                    components.append(set(path[at:]))
                    on_path -= components[-1]
                    del path[at:]
    return components


def _is_exponential(automaton: Automaton, loop: set[int]) -> bool:
    """Say whether two ways lead from a position of the loop back to it over the same text."""
    if not _has_two_ways(automaton, loop):
        return False
    # Perhaps nothing can fail there: as in ^(?:.|\s)*$, which matches every text there is.
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
    pairs = [
        (one, other)
        for position in loop
        for one in following[position]
        for other in following[position]
        if one < other and letters[one] & letters[other]
    ]
    seen = set(pairs)
    while pairs and len(seen) < _MOST_PAIRS:
        one, other = pairs.pop()
        for next_one in following[one]:
            for next_other in following[other]:
                if letters[next_one] & letters[next_other]:
                    if next_one == next_other:
                        return True
                    pair = (min(next_one, next_other), max(next_one, next_other))
                    if pair not in seen:
                        seen.add(pair)
                        pairs.append(pair)
    return len(seen) >= _MOST_PAIRS


def _always_succeeds(automaton: Automaton, position: int) -> bool:
    """Say whether a match succeeds from this position on, whatever text follows."""
    if automaton.conditional:
        return False
    start = frozenset({position})
    seen = {start}
    waiting = [start]
    while waiting:
        positions = waiting.pop()
        if positions & automaton.succeeding:
            continue
        if not positions & automaton.ending or len(seen) > 50:
            return False
        onward = {other for one in positions for other in automaton.following[one]}
        for letter in range(automaton.alphabet.size):
            after = frozenset(other for other in onward if automaton.letters[other] >> letter & 1)
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return True


def _longest_chain(automaton: Automaton, loops: list[set[int]]) -> float:
    """Return how many loops one after the other could share the same text."""
    weights = [_weight(automaton, loop) for loop in loops]
    if sum(weights) < _TOO_HIGH:
        return sum(weights)
    longest: list[float] = []
    for number, loop in enumerate(loops):  # what a loop leads to has been looked at before
        shared = _loops_sharing(automaton, loop, loops[:number])
        longest.append(weights[number] + max([longest[other] for other in shared], default=0))
    return max(longest)


def _weight(automaton: Automaton, loop: set[int]) -> float:
    rounds = max([automaton.rounds[position] for position in loop])
    return min(1, log(rounds + 1, _LENGTH))


def _loops_sharing(automaton: Automaton, loop: set[int], later: list[set[int]]) -> list[int]:
    """Return which of the later loops can go round over a text that leads to them, and over
    which this loop goes round too."""
    return [number for number, other in enumerate(later) if _can_share(automaton, loop, other)]


def _can_share(automaton: Automaton, loop: set[int], later: set[int]) -> bool:
    letters, following = automaton.letters, automaton.following
    waiting = [(one, one, other) for one in loop for other in later]
    seen = set(waiting)
    while waiting and len(seen) < _MOST_PAIRS:
        one, between, other = waiting.pop()
        for next_one in following[one]:
            if next_one not in loop:
                continue
            for next_other in following[other]:
                common = letters[next_one] & letters[next_other]
                if next_other not in later or not common:
                    continue
                for next_between in following[between]:
                    if not common & letters[next_between]:
                        continue
                    if next_between == next_other:
                        return True
                    triple = (next_one, next_between, next_other)
                    if triple not in seen:
                        seen.add(triple)
                        waiting.append(triple)
    return len(seen) >= _MOST_PAIRS
