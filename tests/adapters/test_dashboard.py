"""What the page can change: previews, edits of the deny patterns, and undoing them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from mcp_tool_filter.adapters.watch.dashboard import Dashboard, answer_page
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.patterns import NOTHING


class Edited:
    """A filter whose patterns a dashboard edits."""

    def __init__(self, *deny: str, allow: Sequence[str] = ()) -> None:
        config = parse_config(deny=deny or None, allow=allow or None)
        self.policy = PolicyInForce(
            config=config, fetched=example("read_file", "delete_file", "rm")
        )
        self.board = Dashboard(
            overview=lambda: {"listeners": []},
            config=lambda: self.policy.config,
            snapshots=lambda: [self.policy.snapshot],
            edit=self._edit,
        )

    def _edit(self, deny: list[str]) -> str:
        try:
            self.policy.adopt(parse_config(deny=deny))
        except StartError as error:
            return str(error)
        return ""

    @property
    def deny(self) -> object:
        return self.board.state()["deny"]


def test_a_preview_shows_the_patterns_and_the_command_and_changes_nothing() -> None:
    edited = Edited("^delete_")
    shown = edited.board.preview(hide=["read_file"], show=["delete_file"])
    assert shown == {"deny": ["^read_file$"], "command": "--deny '^read_file$'"}
    assert edited.deny == ["^delete_"]


def test_the_command_that_keeps_the_current_patterns_can_be_pasted_into_a_shell() -> None:
    """A pattern may have a quote in it."""
    edited = Edited("^it's", "^rm$")
    command = edited.board.state()["command"]
    assert isinstance(command, str)
    assert shlex.split(command) == ["--deny", "^it's", "--deny", "^rm$"]


def test_the_last_hidden_tool_can_be_shown_and_hidden_again() -> None:
    """Without any pattern the edit was refused: an empty deny list is a mistake."""
    edited = Edited("^rm$")
    shown = edited.board.preview(hide=[], show=["rm"])
    assert shown == {"deny": ["(?!)"], "command": "--deny '(?!)'"}
    assert edited.board.apply(["(?!)"]) == {"problem": ""}
    assert edited.board.preview(hide=["rm"], show=[])["deny"] == ["^rm$"]
    assert edited.board.undo() == {"problem": ""}
    assert edited.deny == ["^rm$"]


def test_an_edit_can_be_undone_where_there_was_no_pattern_before() -> None:
    edited = Edited(allow=["^read"])
    assert edited.board.apply(["^read_file$"]) == {"problem": ""}
    assert edited.board.undo() == {"problem": ""}
    assert edited.deny == ["(?!)"]


def test_an_edit_can_be_undone_step_by_step() -> None:
    edited = Edited("^delete_")
    assert edited.board.state()["can_undo"] is False
    assert edited.board.apply(["^rm$"]) == {"problem": ""}
    assert edited.board.apply(["^read_"]) == {"problem": ""}
    assert edited.deny == ["^read_"]
    assert edited.board.undo() == {"problem": ""}
    assert edited.deny == ["^rm$"]
    assert edited.board.undo() == {"problem": ""}
    assert (edited.deny, edited.board.state()["can_undo"]) == (["^delete_"], False)
    assert edited.board.undo() == {"problem": "There is nothing to undo"}


def test_a_refused_edit_leaves_nothing_to_undo() -> None:
    edited = Edited("^delete_")
    problem = edited.board.apply(["(a+)+"])["problem"]
    assert "Unsafe regex pattern" in str(problem)
    assert (edited.deny, edited.board.state()["can_undo"]) == (["^delete_"], False)


def test_applying_the_same_patterns_is_no_step() -> None:
    edited = Edited("^delete_")
    edited.board.apply(["^delete_"])
    assert edited.board.state()["can_undo"] is False


def test_the_number_of_steps_back_is_bounded() -> None:
    edited = Edited("^delete_")
    for number in range(200):
        edited.board.apply([f"^tool_{number}$"])
    steps = 0
    while edited.board.state()["can_undo"]:
        edited.board.undo()
        steps += 1
    assert 0 < steps < 100


def test_a_request_of_the_page_must_have_lists_of_names() -> None:
    board = Edited("^delete_").board

    def said(name: str, **more: object) -> tuple[int, dict[str, object]]:
        answer = answer_page(board, "POST", f"/mcp/{name}", json.dumps(more).encode())
        return answer.status, json.loads(answer.body) if answer.status == 200 else {}

    wrong: list[dict[str, object]] = [{}, {"deny": "^rm$"}, {"deny": ["^rm$", 1]}, {"deny": None}]
    for more in wrong:
        assert said("apply", **more) == (400, {})
    assert said("no_such_change") == (400, {})
    assert said("apply", deny=["^rm$"]) == (200, {"problem": ""})
    assert said("preview", hide=[], show=["rm"])[1]["deny"] == [NOTHING]
    assert said("undo") == (200, {"problem": ""})
    assert board.state()["deny"] == ["^delete_"]
