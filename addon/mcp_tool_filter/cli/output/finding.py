"""The findings of ``doctor``, one line for each check."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.cli.output.terminal import Colour, paint
from mcp_tool_filter.errors import safe_lines


@dataclass(frozen=True, slots=True)
class Finding:
    is_well: bool
    text: str
    advice: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the finding as JSON. This format is stable: members may be added, none changes."""
        return {"ok": self.is_well, "text": self.text, "advice": self.advice or None}

    def print(self) -> None:
        mark = paint("ok  ", Colour.GREEN) if self.is_well else paint("FAIL", Colour.RED)
        print(f"{mark} {safe_lines(self.text)}", flush=True)
        if self.advice:
            print(f"     {safe_lines(self.advice)}", flush=True)
