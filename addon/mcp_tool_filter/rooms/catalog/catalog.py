"""The filter of prompts, resources and skills: which are listed, and which may be asked for.

They are filtered as tools are, with one difference: nothing is fetched or pinned. The patterns
alone judge names and URIs, so a name that no pattern denies goes to the upstream, known or not.

Two tables say which methods list what (``_LISTS``), and which ask for what (``_ASKS``): those of
the specification and of SEP-2640. A message that could name two different things is refused.

A skill (SEP-2640) is a folder of resources, at ``skill://PATH/FILE``. Its name is the last part of
its path. All of its files are denied with it, and so are the skills in it:

>>> from mcp_tool_filter.core.policy.patterns import parse_pattern
>>> catalog = CatalogFilter((), (), [parse_pattern("^refunds$")])
>>> [catalog.denying_uri(uri) is not None for uri in (
...     "skill://acme/refunds/SKILL.md", "skill://acme/refunds/a/b.py", "skill://acme/SKILL.md")]
[True, True, False]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain, starmap
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.carried import requests_within
from mcp_tool_filter.core.messages.limits import META_REVISION, Limits, revision_of
from mcp_tool_filter.core.messages.messages import (
    INVALID_PARAMS,
    Message,
    Notification,
    Request,
    Response,
    Single,
    fold,
    is_misleading,
    parse_message,
    quote_harmlessly,
    refuse_misreadable,
    singles,
)
from mcp_tool_filter.core.messages.scan import EACH, Value, has_lone_surrogate, open_value, scan
from mcp_tool_filter.core.messages.sizes import HEAD, MANY, URI
from mcp_tool_filter.core.messages.tools import (
    Edit,
    cache_edits,
    edited,
    fold_key,
    with_edits,
    without,
)
from mcp_tool_filter.core.policy.effects import LET_OTHERS_GO_ON, Deciding, at_once
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.snapshot import CatalogItem, shown
from mcp_tool_filter.core.policy.verdict import (
    Drop,
    Forward,
    Reason,
    Reply,
    Rewrite,
    Verdict,
    Why,
)
from mcp_tool_filter.rooms.catalog.uris import (
    FOR_A_URI,
    UnclearUri,
    Work,
    has_many_marks,
    is_costly,
    spellings_of,
    without_invisible,
)

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.config import Config
    from mcp_tool_filter.core.policy.situation import Situation

PROMPT: Final = "prompt"
RESOURCE: Final = "resource"
SKILL: Final = "skill"


class _List(NamedTuple):
    """How the answer to a method lists things."""

    member: str
    """The member of the result that is the list, or that describes one thing."""
    kind: str
    named_by: tuple[str, ...]
    """The members of an element that name it; the first that is there names it to people."""


_LISTS: Final = {
    "prompts/list": _List("prompts", PROMPT, ("name",)),
    "resources/list": _List("resources", RESOURCE, ("uri",)),
    "resources/templates/list": _List("resourceTemplates", RESOURCE, ("uriTemplate",)),
    "resources/read": _List("contents", RESOURCE, ("uri",)),
    "resources/directory/read": _List("resources", RESOURCE, ("uri",)),
    "skills/list": _List("skills", SKILL, ("uri", "name")),
    "skills/get": _List("skill", SKILL, ("uri", "name")),
}
"""The methods whose answers list things. (One of ``resources/read`` may have a whole folder.)"""
_FILES: Final = _LISTS["resources/list"]
"""How a skill lists its own files."""
_ASKS: Final = {
    "prompts/get": (PROMPT, "name"),
    "resources/read": (RESOURCE, "uri"),
    "resources/subscribe": (RESOURCE, "uri"),
    "resources/unsubscribe": (RESOURCE, "uri"),
    "resources/directory/read": (RESOURCE, "uri"),
    "skills/get": (SKILL, "uri"),  # or "name", as before the extension was accepted
    "notifications/resources/updated": (RESOURCE, "uri"),
}
"""The methods that ask for one thing, or tell of it: its kind, and the member that names it."""
_OF_AN_ELEMENT: Final = frozenset({
    "name", "title", "description", "arguments", "icons", "_meta", "uri", "uriTemplate", "mimeType",
    "annotations", "size", "text", "blob", "frontmatter", "resources", "digest",
})  # fmt: skip
_OF_A_RESULT: Final = frozenset({
    *(how.member for how in _LISTS.values()),
    "nextCursor", "_meta", "ttlMs", "cacheScope", "resultType",
})  # fmt: skip
"""Members that nobody takes for one another."""
_COMPLETE, _LISTEN = "completion/complete", "subscriptions/listen"
_NAMED_EXACTLY: Final = (*_ASKS, _COMPLETE, _LISTEN)
_LISTED_BY: Final = {
    PROMPT: ("prompts/list",),
    RESOURCE: ("resources/list", "resources/templates/list"),
    SKILL: ("skills/list", "resources/list"),
}
_KNOWN: Final = frozenset(
    {"name", "uri", "ref", "cursor", "arguments", "argument", "context", "_meta"}
    | {"notifications", "resourceSubscriptions"}
)
_KNOWN_FOLDED: Final = frozenset(map(fold, _KNOWN))
_NOT_A_LETTER = re.compile(r"[\W_]")
# A string that may be a URI, as an element of an array or as a member (its key may have escapes).
_COSTLY_STRING = re.compile(
    r'(?:[\[,]|"(?:uri|uriTemplate|name|[^"\\]*+\\[^"]*+)"[ \t\n\r]*:)[ \t\n\r]*'
    r'("(?=[^"%\\]*(?:[%\\]|/\.)|[^"]{200})(?:[^"\\]|\\.)*+")'
)
_AT_ONCE = 20_000  # steps for URIs that are judged ahead before other clients are served
_MOST_ASKED = 2_000_000  # steps for all URIs that one message of a client may name: 0.1 s
_MOST_SAID = 100_000_000  # steps for all URIs that an answer may have: 5 s, with pauses
_MOST_WITHOUT_PAUSE = 5_000_000  # steps for those that are only found while we decide: 0.25 s
_STEPS_OF_URI, _STEPS_OF_CHARACTER = 500, 40  # at least
_SHORT_URI = 200  # characters; without escapes and dots it is judged at once
_LONGEST_METHOD = 64  # characters of one whose kind we remember
_LONGEST_KEPT = 1024  # characters of a URI whose verdict we remember
_MOST_LEVELS = 100  # folders of a URI
_FOLDER_OF_SKILLS = re.compile(r"(?:^|/)skills?/", re.IGNORECASE)
_SKILL_FILE = re.compile(r"(?:^|/)SKILL\.md$", re.IGNORECASE)


class Denied(NamedTuple):
    """A thing that is hidden and refused."""

    kind: str
    name: str
    why: str
    """For observers."""
    pattern: str = ""


class CatalogFilter:
    """The patterns in force for prompts, resources and skills."""

    def __init__(
        self, prompts: Sequence[Pattern], resources: Sequence[Pattern], skills: Sequence[Pattern]
    ) -> None:
        self._prompts, self._resources, self._skills = prompts, resources, skills
        self._patterns = prompts, resources, skills
        self._roots: dict[str, str] = {}
        """The folders of denied skills that lists have shown, by URI, and the patterns that deny
        them: of another scheme than skill://, a URI does not tell that it belongs to a skill."""
        self._ahead: dict[str, Denied | None] = {}
        """Verdicts on the URIs of the message that is decided next."""
        self._left = inf
        """Steps that are left for all other URIs of the message that is decided."""
        of_uris = (RESOURCE, SKILL) if resources or skills else ()
        self._kinds: frozenset[str] = frozenset((*of_uris, *((PROMPT,) if prompts else ())))
        self._denying_uri = lru_cache(maxsize=4096)(self._judge_uri)
        self._asks_once = lru_cache(maxsize=256)(self._asks_anew)

    # Names

    def denying_prompt(self, name: str) -> Denied | None:
        """Return what denies the prompt of this name."""
        if len(name) > HEAD:
            return Denied(PROMPT, name, "a name that cannot be judged")
        if name.isascii() and name.isprintable() and name.strip() == name:  # nearly all
            return _first(PROMPT, self._prompts, name, (name,))
        if has_many_marks(name):
            return Denied(PROMPT, name, "a name that cannot be judged")
        plain = without_invisible(name)
        return _first(PROMPT, self._prompts, name, (name,) if plain == name else (name, plain))

    def denying_uri(self, uri: str) -> Denied | None:
        """Return what denies the resource, the template or the skill's file at this URI."""
        if len(uri) > URI:
            return Denied(RESOURCE, uri, "a URI that is too long to judge")
        if uri in self._ahead:
            return self._ahead[uri]
        return self._denying_uri(uri) if len(uri) <= _LONGEST_KEPT else self._judge_uri(uri)

    def judge_ahead(self, answer: Message, method: str = "") -> Deciding[None]:
        """Judge the URIs of a long answer in steps, so that other clients are served meanwhile:
        one with escapes has many spellings. Decide on the answer right after this."""
        if (not method or method in _LISTS) and RESOURCE in self._kinds:
            text = next(singles(answer)).place.text
            yield from self._judge_all_ahead((
                uri for found in _COSTLY_STRING.finditer(text)
                if not has_lone_surrogate(uri := json.loads(found[1]))
            ), _MOST_SAID)  # fmt: skip

    def judge_asked_ahead(self, message: Message) -> None:
        """Judge the URIs that a client's message names. Raises ProtocolError if they are too many,
        or cannot be read."""
        alone = [one for one in singles(message) if not isinstance(one, Response)]
        asked = chain(alone, *map(requests_within, alone))
        found = (it for one in asked if self._asks(one.method) for it in _named_in(one))
        named = [
            text if kind == RESOURCE else _uri_of_skill(text)
            for kind, text in found
            if kind != PROMPT
        ]
        slow = [uri for uri in named if len(uri) > _SHORT_URI or is_costly(uri)]
        least = sum(_STEPS_OF_CHARACTER * len(uri) for uri in slow if len(uri) <= URI)
        if least > _MOST_ASKED:
            raise ProtocolError("too many URIs to judge")
        at_once(self._judge_all_ahead(slow, _MOST_ASKED))

    def _judge_all_ahead(self, uris: Iterable[str], most: float = inf) -> Deciding[None]:
        ahead: dict[str, Denied | None] = {}
        pause_at = spent = 0
        for uri in uris:
            if len(uri) > URI or uri in ahead:
                continue
            if spent >= pause_at:
                yield LET_OTHERS_GO_ON
                pause_at = spent + _AT_ONCE
            if spent > most:
                raise ProtocolError("too many URIs to judge")
            work = Work()
            ahead[uri] = self._judge_spellings(uri, work)
            spent += _STEPS_OF_URI + FOR_A_URI - work.steps
        self._ahead = ahead

    def _judge_uri(self, uri: str) -> Denied | None:
        """Raises ProtocolError if the message has too many URIs."""
        if self._left < 0:
            raise ProtocolError("too many URIs to judge")
        work = Work()
        try:
            return self._judge_spellings(uri, work)
        finally:
            self._left -= _STEPS_OF_URI + FOR_A_URI - work.steps

    def _judge_spellings(self, uri: str, work: Work) -> Denied | None:
        """Judge a URI by all that a server could take it for; refuse it if that is too much."""
        try:
            spellings = spellings_of(uri, work)
            if denied := _first(RESOURCE, self._resources, uri, spellings, work):
                return denied
            for spelling in spellings if self._skills else ():
                if spelling.count("/") > _MOST_LEVELS:
                    return Denied(SKILL, uri, "a URI with too many folders")
                if denied := self._judge_skill_file(uri, spelling, work):
                    return denied
        except UnclearUri as error:
            return Denied(RESOURCE if self._resources else SKILL, uri, f"an unclear URI: {error}")
        return None

    def _judge_skill_file(self, uri: str, spelling: str, work: Work) -> Denied | None:
        """Judge a file by all folders that it is in: each may be a skill."""
        work.read(spelling, spelling.count("/") + 1)
        folders = list(_folders_of(spelling))
        if by := next(filter(None, map(self._roots.get, folders)), ""):
            return Denied(SKILL, uri, f"denied by {by}", by)
        for folder in _skills_among(folders, spelling):
            if denied := _first(SKILL, self._skills, uri, _ways_to_name(folder), work):
                return denied
        return None

    # What the upstream lists

    @property
    def lists(self) -> tuple[str, ...]:
        """The methods that list what the patterns judge."""
        by_kind = zip(_LISTED_BY.values(), self._patterns, strict=True)
        asked = (method for methods, patterns in by_kind if patterns for method in methods)
        return tuple(dict.fromkeys(asked))

    def survey(
        self, answers: Mapping[str, Sequence[bytes]]
    ) -> tuple[tuple[CatalogItem, ...], list[Pattern]]:
        """Return what an upstream lists, given its answers to ``lists``, and the patterns that
        match nothing of that. Raises ProtocolError.

        Those that may match what is not listed do not count: expansions of a template, and files
        of a skill, which need no listing.
        """
        self._left = inf
        listed = list(_elements_of(answers))
        has_templates = any(method == "resources/templates/list" for method, *_ in listed)
        has_skills = any(method == "skills/list" for method, *_ in listed)
        items = []
        for _, text, element, how in listed:
            names = [value.text for name in how.named_by if (value := element.get(name))]
            name = next((one for one in names if one), "?")
            denied = self._judge_element(text, element, how)
            pattern = denied.pattern or "?" if denied else ""
            items.append(CatalogItem(how.kind, shown(name), pattern))
        is_telling = {PROMPT: True, RESOURCE: not has_templates, SKILL: has_skills}
        unmatched = [
            pattern
            for kind, patterns in zip(_LISTED_BY, self._patterns, strict=True)
            if is_telling[kind] and all(method in answers for method in _LISTED_BY[kind])
            for pattern in patterns
            if not _hits(pattern, kind, listed)
        ]
        return tuple(items), unmatched

    def hides(self, topic: str) -> bool:
        """Tell whether anything is denied that methods about this may show."""
        return topic == "completion" or topic.removesuffix("s") in self._kinds

    # What clients ask for

    def decide_from_client(self, message: Request | Notification, situation: Situation) -> Verdict:
        """Answer a request for a denied thing as if there were no such thing."""
        if not self._asks(message.method) or message.params is None:
            return Forward()
        self._left = _MOST_WITHOUT_PAUSE
        if message.params.members is None:
            raise ProtocolError("params that are not an object")
        _refuse_alike(message.params)
        if message.method == _LISTEN:
            return self._decide_listen(message, situation)
        denied = self._first_denied(_named_in(message))
        return Forward() if denied is None else _refused(message, denied, situation)

    def _asks(self, method: str) -> bool:
        """Tell whether a method asks for something that is judged. Raises ProtocolError."""
        is_short = len(method) <= _LONGEST_METHOD
        return (self._asks_once if is_short else self._asks_anew)(method)

    def _asks_anew(self, method: str) -> bool:
        """Raises ProtocolError for a method that a careless reader takes for another one."""
        if method in _NAMED_EXACTLY:
            kind, _ = _ASKS.get(method, (RESOURCE if method == _LISTEN else "", ""))
            return not kind or kind in self._kinds
        path = re.split(r"[?#;]", unquote(unquote(method)), maxsplit=1)[0]
        bare = _NOT_A_LETTER.sub("", fold(path))
        for known in _NAMED_EXACTLY:
            is_like_it = bare.endswith(_NOT_A_LETTER.sub("", known).lower())
            if is_like_it and self._asks_anew(known):
                raise ProtocolError("a method that could be taken for another")
        return False

    def _first_denied(self, named: Iterable[tuple[str, str]]) -> Denied | None:
        """Return what denies the first denied thing that a message names."""
        return next(filter(None, starmap(self._judge, named)), None)

    def _judge(self, kind: str, text: str) -> Denied | None:
        if kind == PROMPT:
            return self.denying_prompt(text) if self._prompts else None
        if RESOURCE not in self._kinds:
            return None
        if kind == RESOURCE:
            return self.denying_uri(text)
        denied = self.denying_uri(_uri_of_skill(text))
        return denied and denied._replace(name=text)

    def _decide_listen(self, message: Request | Notification, situation: Situation) -> Verdict:
        """Remove the denied resources from a subscription; refuse one of nothing else."""
        text = message.place.text
        asked, uris = _subscribed_in(message)
        if uris is None:
            return Forward()
        found = [self._judge(*one) for one in _named_in(message)]
        denied = [one for one in found if one is not None]
        if not denied:
            return Forward()
        others = [
            member
            for member in asked.members or ()
            if member.key != "resourceSubscriptions" and text[member.value.start] not in "fn"
        ]
        if len(denied) == len(found) and not others:
            return _refused(message, denied[0], situation)
        kept = [one is None for one in found]
        edit = Edit(uris.start, uris.end, without(text, uris, kept))
        return Rewrite(edited(message.place, [edit]), _reason(Why.DENIED, denied))

    # What the upstream says

    def decide_from_upstream(self, message: Single, situation: Situation) -> Verdict:
        """Remove denied things from a list; drop a notification about one."""
        method = situation.exchange.method if situation.exchange else ""
        self._left = _MOST_WITHOUT_PAUSE
        try:
            if isinstance(message, Notification):
                return self._decide_notification(message)
            if isinstance(message, Response) and message.result is not None:
                return self._decide_answer(message, message.result, method, situation)
            return Forward()
        finally:
            self._ahead = {}

    def _decide_notification(self, message: Notification) -> Verdict:
        if message.method not in _ASKS or message.params is None or not message.params.members:
            return Forward()
        _refuse_alike(message.params)
        denied = self._first_denied(_named_in(message))
        return Forward() if denied is None else Drop(_reason(Why.DENIED, [denied]))

    def _decide_answer(
        self, message: Response, result: Value, method: str, situation: Situation
    ) -> Verdict:
        """Remove denied things from the lists that a method has; from every list in an answer to
        a request that we do not know."""
        lists = [_LISTS[method]] if method in _LISTS else () if method else _LISTS.values()
        edits: list[Edit] = []
        found: list[Denied] = []
        for how in dict.fromkeys(lists):
            if how.kind not in self._kinds or (value := _member_in(result, how.member)) is None:
                continue
            one = open_value(message.place.text, value, {EACH: {}})
            if one.members is not None and how.member == "skill":
                denied = self._judge_element(message.place.text, one, how)
                if denied is not None:
                    return _not_there(message, denied, method, situation)
                edits += self._files_in(message.place.text, one, found)
            elif one.elements is not None:
                new = self._filtered(message.place.text, one, how, found)
                edits += [Edit(value.start, value.end, new)] if new is not None else []
                if new == "[]" and how.member == "contents":
                    return _not_there(message, found[0], method, situation)
            elif method:
                raise ProtocolError(f"{how.member} that are not a list")
        if not edits:
            return Forward()
        edits += cache_edits(message.place.text, result)
        return Rewrite(edited(message.place, edits), _reason(Why.HIDDEN, found))

    def _filtered(self, text: str, array: Value, how: _List, found: list[Denied]) -> str | None:
        """Return a list without denied things; None if it has none."""
        kept: list[bool] = []
        changed: dict[int, str] = {}
        for number, element in enumerate(array.elements or ()):
            denied = self._judge_element(text, element, how)
            kept.append(denied is None)
            if denied is not None:
                found.append(denied)
            elif how.kind == SKILL and (edits := [*self._files_in(text, element, found)]):
                changed[number] = with_edits(text, element.start, element.end, edits)
            elif how.member == "contents" and (new := self._manifest(text, element, found)):
                changed[number] = new
        return None if all(kept) and not changed else without(text, array, kept, changed)

    def _files_in(self, text: str, skill: Value, found: list[Denied]) -> Iterator[Edit]:
        """Yield what removes the files of denied skills from the manifest of one around them."""
        files = skill.get(_FILES.member)
        listed = open_value(text, files, {EACH: {}}) if files else None
        if files and listed and listed.elements:
            new = self._filtered(text, listed, _FILES, found)
            if new is not None:
                yield Edit(files.start, files.end, new)

    def _manifest(self, text: str, content: Value, found: list[Denied]) -> str | None:
        """Return FastMCP's manifest of a skill (``skill://x/_manifest``) without the files of
        denied skills in it; None if it is none, or has none."""
        uri, said = content.get("uri"), content.get("text")
        folder, slash, file = (uri.text if uri and uri.text else "").rpartition("/")
        if file != "_manifest" or not slash or not said or not said.text:
            return None
        try:
            listed, root = scan(said.text.encode(), {"files": {EACH: {}}})
        except ProtocolError:
            return None
        files = root.get("files")
        elements = (files.elements if files else None) or ()
        paths = [path.text if (path := element.get("path")) else None for element in elements]
        denied = [self.denying_uri(f"{folder}/{path}") if path else None for path in paths]
        if not files or not any(denied):
            return None
        found += filter(None, denied)
        new = without(listed, files, [one is None for one in denied])
        written = json.dumps(listed[: files.start] + new + listed[files.end :])
        return text[content.start : said.start] + written + text[said.end : content.end]

    def _judge_element(self, text: str, element: Value, how: _List) -> Denied | None:
        """Return why an element of a list must not be shown."""
        kind, named_by = how.kind, how.named_by
        if element.text is not None and not has_lone_surrogate(element.text):
            return self._judge(kind, element.text)
        if not _is_clear(element, _OF_AN_ELEMENT):
            keys = [fold_key(member.key) for member in element.members or ()]
            if not keys or len(set(keys)) != len(keys) or any(map(is_misleading, keys)):
                return Denied(kind, "?", "an element that could be read in two ways")
        named = {name: element.named.get(name) for name in named_by}
        if kind == SKILL and (front := element.get("frontmatter")):
            named["frontmatter"] = open_value(text, front, {}).get("name")
        texts = {name: value.text for name, value in named.items() if value is not None}
        if not texts:
            is_content = how.member == "contents"
            return None if is_content else Denied(kind, "?", "an element without a name")
        for name, said in texts.items():
            if said is None or (not said.isascii() and has_lone_surrogate(said)):
                return Denied(kind, "?", "an element without a name")
            denied = self._judge(RESOURCE if name == "uri" else kind, said)
            if denied is not None:
                if kind == SKILL and denied.kind == SKILL:
                    self._remember_root(texts.get("uri"), denied.pattern)
                return denied
        return None

    def _remember_root(self, uri: str | None, pattern: str) -> None:
        """Remember the folder of a denied skill: its files are denied, too."""
        if uri is None or not pattern or len(self._roots) >= MANY:
            return
        try:
            spellings = spellings_of(uri)
        except UnclearUri:
            return
        for spelling in spellings:
            folder = _SKILL_FILE.sub("", _without_query(spelling)).rstrip("/")
            if folder.rpartition("://")[2].strip("/") and folder not in self._roots:
                self._roots[folder] = pattern
                self._ahead = {}
                self._denying_uri.cache_clear()


def with_catalog(config: Config, known: Config | None = None) -> Config:
    """Return a configuration with the filter of its patterns; that of a ``known`` one with the same
    patterns remembers what it has seen."""
    if not config.of_catalog or config.catalog is not None:
        return config
    before = known.catalog if known is not None and known.of_catalog == config.of_catalog else None
    return replace(config, catalog=before or CatalogFilter(*config.of_catalog))


def _first(
    kind: str,
    patterns: Sequence[Pattern],
    name: str,
    texts: Sequence[str],
    work: Work | None = None,
) -> Denied | None:
    for pattern in patterns:
        if any(pattern.matches(text, work) for text in texts):
            return Denied(kind, name, f"denied by {pattern.text}", pattern.text)
    return None


def _is_clear(holder: Value, usual: frozenset[str]) -> bool:
    """Tell whether an object has only usual members, each once: nobody reads them differently."""
    return usual.issuperset(holder.named) and 0 < len(holder.named) == len(holder.members or ())


def _member_in(result: Value, name: str) -> Value | None:
    """Return a member. Raises ProtocolError if some reader may take another one for it."""
    if _is_clear(result, _OF_A_RESULT):
        return result.named.get(name)
    alike = [one for one in result.members or () if fold_key(one.key) == fold(name)]
    if not alike:
        return None
    if len(alike) > 1 or alike[0].key != name:
        raise ProtocolError(f"a list of {name} that could be read in two ways")
    return alike[0].value


def _named_in(message: Request | Notification) -> Iterator[tuple[str, str]]:
    """Yield each thing that a message names: its kind, and the name. Raises ProtocolError."""
    params = message.params
    if params is None:
        return
    if message.method == _LISTEN:
        uris = _subscribed_in(message)[1]
        yield from _names(RESOURCE, *(uris.elements or () if uris else ()))
    elif message.method == _COMPLETE:
        if (ref := params.get("ref")) is not None:
            opened = open_value(message.place.text, ref, {})
            if opened.members is None:
                raise ProtocolError("a ref that is not an object")
            _refuse_alike(opened)
            yield from _names(PROMPT, opened.get("name"))
            yield from _names(RESOURCE, opened.get("uri"))
    else:
        kind, name = _ASKS[message.method]
        yield from _names(kind, params.get(name), params.get("name") if kind == SKILL else None)


def _subscribed_in(message: Request | Notification) -> tuple[Value, Value | None]:
    """Return what a subscription asks for, and the resources in it. Raises ProtocolError."""
    text, params = message.place.text, message.params
    asked = params.get("notifications") if params else None
    asked = open_value(text, asked, {"resourceSubscriptions": {EACH: None}}) if asked else None
    if asked is None or asked.members is None:
        return Value(0, 0), None
    _refuse_alike(asked)
    uris = asked.get("resourceSubscriptions")
    if uris is None or text[uris.start] == "n":
        return asked, None
    if uris.elements is None:
        raise ProtocolError("resourceSubscriptions that are not a list")
    return asked, uris


def _names(kind: str, *values: Value | None) -> Iterator[tuple[str, str]]:
    for value in filter(None, values):
        if value.text is None:
            raise ProtocolError(f"the name of a {kind} that is not a string")
        if has_lone_surrogate(value.text):
            raise ProtocolError(f"half a surrogate pair in the name of a {kind}")
        yield kind, value.text


def _uri_of_skill(text: str) -> str:
    """Return the URI of a skill that is named by its URI, its path or its name."""
    return text if "://" in text else f"skill://{text.strip('/')}"


type _Listed = tuple[str, str, Value, _List]
"""The method, the text and the place of one thing, and how it is listed."""


def _elements_of(answers: Mapping[str, Sequence[bytes]]) -> Iterator[_Listed]:
    for method, pages in answers.items():
        how = _LISTS[method]
        for page in pages:
            with suppress(ProtocolError):  # clients will not get such a list
                message = parse_message(page, Limits(message=len(page)))
                if isinstance(message, Response) and message.result:
                    text, found = message.place.text, message.result.get(how.member)
                    opened = open_value(text, found, {EACH: {}}) if found else None
                    for element in (opened.elements if opened else None) or ():
                        yield method, text, element, how


def _hits(pattern: Pattern, kind: str, listed: Sequence[_Listed]) -> bool:
    alone = CatalogFilter(*([pattern] if kind == one else [] for one in _LISTED_BY))
    return any(alone._judge_element(text, element, how) for _, text, element, how in listed)


def _refuse_alike(holder: Value) -> None:
    """Raise ProtocolError for keys that a careless reader could confuse."""
    members = holder.members or ()
    refuse_misreadable(members, _KNOWN)
    for key in holder.named:
        if key not in _KNOWN and fold(key) in _KNOWN_FOLDED:
            raise ProtocolError("a key that could be taken for another")


def _without_query(uri: str) -> str:
    return re.split(r"[?#]", uri, maxsplit=1)[0]


def _skills_among(folders: Sequence[str], spelling: str) -> Sequence[str]:
    """Return the folders that may be skills: all below skill://, or below a folder called skills;
    elsewhere the one with a SKILL.md."""
    if spelling.startswith("skill:"):
        return folders
    path = _without_query(spelling)
    if below := _FOLDER_OF_SKILLS.search(path):
        return [folder for folder in folders if len(folder) > below.end()]
    return folders[-1:] if _SKILL_FILE.search(path) else ()


def _folders_of(spelling: str) -> Iterator[str]:
    """Yield the URIs of all folders that a file is in, and its own if it may be a folder."""
    scheme, colon, path = _without_query(spelling).rstrip("/").partition("://")
    if not colon:
        scheme, colon, path = spelling.partition(":")
    parts = path.split("/")
    if len(parts) > 1 and "." in parts[-1]:
        parts.pop()
    for count in range(1, len(parts) + 1):
        if parts[count - 1]:
            yield f"{scheme}{colon}{'/'.join(parts[:count])}"


def _ways_to_name(folder: str) -> tuple[str, ...]:
    """Return how a pattern may name the skill in a folder: by name, path, or URI."""
    path = folder.rpartition("://")[2].strip("/")
    below = _FOLDER_OF_SKILLS.split(path)[-1]
    return path.rpartition("/")[2], path, below, folder, f"{folder}/SKILL.md"


def _reason(why: Why, denied: Sequence[Denied]) -> Reason:
    first = denied[0]
    names = tuple(shown(one.name) for one in denied if one.name)
    return Reason(why, names, detail=first.why, thing=first.kind, pattern=first.pattern)


def _refused(message: Request | Notification, denied: Denied, situation: Situation) -> Verdict:
    reason = _reason(Why.DENIED, [denied])
    if isinstance(message, Notification):
        return Drop(reason)
    meta = message.params.get("_meta") if message.params else None
    said = meta.get(META_REVISION) if meta else None
    revision = said.text if said else None
    return Reply(_unknown(message.id, message.method, denied, situation, revision), reason)


def _not_there(message: Response, denied: Denied, method: str, situation: Situation) -> Rewrite:
    """Replace an answer that shows nothing but what is denied."""
    answer = _unknown(message.id or "null", method, denied._replace(name=""), situation)
    return Rewrite(answer, _reason(Why.DENIED, [denied]))


def _unknown(
    id: str, method: str, denied: Denied, situation: Situation, revision: str | None = None
) -> bytes:
    """Write the error that the revision's specification has for something that does not exist."""
    if revision is None and situation.client is not None:
        revision = situation.client.revision
    is_of_resources = method.startswith(("resources/", _LISTEN))
    code = INVALID_PARAMS
    if is_of_resources and method not in (_LISTEN, "resources/directory/read"):
        code = revision_of(revision).resource_not_found
    if is_of_resources:
        uri = quote_harmlessly(denied.name)
        said, data = "Resource not found", f',"data":{{"uri":{uri}}}' if denied.name else ""
    else:
        said, data = f"Unknown {denied.kind}: {shown(denied.name)}".rstrip(": "), ""
    error = f'{{"code":{code},"message":{quote_harmlessly(said)}{data}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()
