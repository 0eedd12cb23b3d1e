"""``mcp-tool-filter completion SHELL``: a script that completes commands, flags and choices."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_tool_filter.cli.launcher import COMMANDS
from mcp_tool_filter.cli.settings.flags import FLAGS, Flag
from mcp_tool_filter.cli.settings.usage import UsageError, no_such

_HELP = """\
usage: mcp-tool-filter completion bash|zsh|fish

Prints a script that completes commands and flags, for the file that your shell reads first:
  eval "$(mcp-tool-filter completion bash)"       or zsh
  mcp-tool-filter completion fish | source
"""
_CLIENTS = "claude-code claude-desktop cursor vscode codex gemini"
_BASH = """\
# eval "$(mcp-tool-filter completion bash)"
_mcp_tool_filter() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    case "$previous" in
{cases}
        config) COMPREPLY=($(compgen -W "{clients}" -- "$current")); return ;;
        completion) COMPREPLY=($(compgen -W "bash zsh fish" -- "$current")); return ;;
    esac
    if [[ "$current" == -* ]]; then
        COMPREPLY=($(compgen -W "{flags}" -- "$current"))
    elif [[ "$COMP_CWORD" == 1 ]]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
    fi
}}
complete -o default -F _mcp_tool_filter mcp-tool-filter
"""
_ZSH = """\
# eval "$(mcp-tool-filter completion zsh)"
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""
_FISH = """\
# mcp-tool-filter completion fish | source
complete -c mcp-tool-filter -n __fish_use_subcommand -f -a "{commands}"
complete -c mcp-tool-filter -n "__fish_seen_subcommand_from config" -f -a "{clients}"
complete -c mcp-tool-filter -n "__fish_seen_subcommand_from completion" -f -a "bash zsh fish"
{flags}
"""


def run(argv: Sequence[str]) -> int:
    """Print the script for a shell."""
    if argv in (["--help"], ["-h"]):
        print(_HELP, end="")
        return 0
    if len(argv) != 1:
        why = "mcp-tool-filter completion bash, zsh or fish"
        raise UsageError("Which shell? It comes after completion", why=why)
    scripts = {"bash": _bash, "zsh": lambda: _ZSH + _bash(), "fish": _fish}
    if argv[0] not in scripts:
        raise no_such("completion for", argv[0], scripts)
    print(scripts[argv[0]](), end="")
    return 0


def _bash() -> str:
    return _BASH.format(
        cases="\n".join(case for flag in FLAGS.values() if flag.value and (case := _case(flag))),
        flags=" ".join(f"--{name}" for name in FLAGS),
        commands=" ".join(COMMANDS),
        clients=_CLIENTS,
    )


def _case(flag: Flag) -> str:
    """What comes after a flag that wants a value: one of its choices, a file, or free text."""
    names = "|".join(flag.spellings)
    if flag.choices:
        words = f'COMPREPLY=($(compgen -W "{" ".join(flag.choices)}" -- "$current"))'
    elif flag.value == "FILE":
        words = 'COMPREPLY=($(compgen -f -- "$current"))'
    else:
        words = "COMPREPLY=()"
    return f"        {names}) {words}; return ;;"


def _fish() -> str:
    return _FISH.format(
        commands=" ".join(COMMANDS),
        clients=_CLIENTS,
        flags="\n".join(map(_fish_flag, FLAGS.values())),
    )


def _fish_flag(flag: Flag) -> str:
    words = ["complete -c mcp-tool-filter", f"-l {flag.name}"]
    if flag.short:
        words.append(f"-s {flag.short}")
    if flag.choices:
        words.append(f'-x -a "{" ".join(flag.choices)}"')
    elif flag.value:
        words.append("-r" if flag.value == "FILE" else "-x")
    said = flag.help.replace("\\", "\\\\").replace("'", "\\'")
    return " ".join([*words, f"-d '{said}'"])
