"""``mcp-tool-filter completion SHELL``: a script that completes commands, flags and choices.

A project's file may come from anybody. So a shell must never expand the name of a server: compgen
and ``_arguments`` would run the command in a name such as ``$(…)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_tool_filter.cli.flags import WORDS, Given
from mcp_tool_filter.cli.options import OPTIONS, Option
from mcp_tool_filter.cli.table import CLIENTS, COMMANDS, FILTER, Command

_PATHS = ("FILE", "DIR")
_CLIENTS = "mcp-tool-filter clients 2>/dev/null"
_SERVERS = f"{_CLIENTS} | awk -F'\\t'"
_OF_CLIENT = "$1 == client {print $3}"
# The names of the servers in the default config file, without starting Python.
_OF_FILE = (
    r"""sh -c 'sed -n -e "s/^\[servers\.\([A-Za-z0-9_-]*\)\].*/\1/p" """
    r"""-e "s/^\[servers\.\"\([^\"]*\)\"\].*/\1/p" """
    r""""${XDG_CONFIG_HOME:-$HOME/.config}/mcp-tool-filter/config.toml" 2>/dev/null'"""
)
_BASH = """\
# eval "$(mcp-tool-filter completion bash)"
_mcp_tool_filter_names() {{
    local name
    while IFS= read -r name || [[ -n "$name" ]]; do
        name="$(printf %q "$name")"
        [[ "$name" == "$current"* ]] && COMPREPLY+=("$name")
    done
}}
_mcp_tool_filter() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="" flags words="" servers=""
    [[ "$COMP_CWORD" -gt 1 ]] && command="${{COMP_WORDS[1]}}"
    case "$command" in
{commands}
    esac
    if [[ "$current" == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$current"))
    elif [[ "$COMP_CWORD" == 1 ]]; then
        COMPREPLY=($(compgen -W "{names}" -- "$current"))
    elif [[ "$COMP_CWORD" == 2 ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    elif [[ "$COMP_CWORD" == 3 && -n "$servers" ]]; then
        COMPREPLY=()
        _mcp_tool_filter_names < <({servers} -v client="${{COMP_WORDS[2]}}" "$servers")
    fi
}}
complete -o default -F _mcp_tool_filter mcp-tool-filter
"""
_ZSH = """\
# eval "$(mcp-tool-filter completion zsh)"
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
_mcp_tool_filter_servers() {{
    local -a names
    names=(${{(f)"$({servers} -v client="$client" {of_client})"}})
    compadd "$@" -a names
}}
_mcp_tool_filter_sections() {{
    local -a names
    names=(${{(f)"$({sections})"}})
    compadd "$@" -a names
}}
_mcp_tool_filter() {{
    local -a commands
    commands=(
{names}
    )
    if (( CURRENT == 2 )) && [[ "$PREFIX" != -* ]]; then
        _describe command commands
        return
    fi
    local command="$words[2]" client="$words[3]"
    case "$command" in
{commands}
    esac
}}
compdef _mcp_tool_filter mcp-tool-filter
"""


def run(typed: Given) -> int:
    """Print the script for a shell."""
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    [shell] = typed[WORDS]
    print(scripts[shell](), end="")
    return 0


def _names_server(command: Command) -> bool:
    """Tell whether the second word of a command is a server in a client's file."""
    return command.choices == CLIENTS and command.most_words > 1


def _names_section(flag: Option) -> bool:
    """Tell whether a flag's value is a server in the config file."""
    return flag == OPTIONS["server"]


def _bash() -> str:
    parts = [*map(_bash_case, COMMANDS.values()), _bash_case(FILTER)]
    names = " ".join(COMMANDS)
    return _BASH.format(commands="\n".join(parts), names=names, servers=_SERVERS)


def _bash_case(command: Command) -> str:
    flags = command.all_flags
    lines = [
        f"    {command.name or '*'})",
        f'        flags="{" ".join(f"--{flag.name}" for flag in flags)}"',
        *([f'        words="{" ".join(command.choices)}"'] if command.choices else []),
        *([f"        servers='{_OF_CLIENT}'"] if _names_server(command) else []),
        '        case "$previous" in',
        *(_bash_values(flag) for flag in flags if flag.value),
        "        esac ;;",
    ]
    return "\n".join(lines)


def _bash_values(flag: Option) -> str:
    """Return the completion of a flag's value: its choices, a path, or free text."""
    if flag.choices:
        words = f'COMPREPLY=($(compgen -W "{" ".join(flag.choices)}" -- "$current"))'
    elif _names_section(flag):
        words = f"COMPREPLY=(); _mcp_tool_filter_names < <({_OF_FILE})"
    elif flag.value in _PATHS:
        words = 'COMPREPLY=($(compgen -f -- "$current"))'
    else:
        words = "COMPREPLY=()"
    return f"            {'|'.join(flag.spellings)}) {words}; return ;;"


def _zsh() -> str:
    names = [f"        {_quoted(f'{one.name}:{one.summary}')}" for one in COMMANDS.values()]
    parts = [*map(_zsh_case, COMMANDS.values()), _zsh_case(FILTER)]
    return _ZSH.format(
        commands="\n".join(parts), names="\n".join(names),
        servers=_SERVERS, of_client=_quoted(_OF_CLIENT), sections=_OF_FILE,
    )  # fmt: skip


def _zsh_case(command: Command) -> str:
    """Render a case.

    (``_arguments`` counts the words after the command, or from the start without one.)
    """
    shift = ["        shift words; (( CURRENT-- ))"] if command.name else []
    specs = [spec for flag in command.all_flags for spec in _zsh_flags(flag)]
    if command.choices:
        specs.append(_quoted(f"1:word:({' '.join(command.choices)})"))
    if _names_server(command):
        specs.append("2:server:_mcp_tool_filter_servers")
    specs.append(_quoted("*:file:_files"))
    listed = " \\\n            ".join(specs)
    arguments = f"        _arguments \\\n            {listed}"
    return "\n".join([f"    {command.name or '*'})", *shift, f"{arguments} ;;"])


def _zsh_flags(flag: Option) -> Iterator[str]:
    said = flag.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    value = ""
    if flag.choices:
        value = f":{flag.value}:({' '.join(flag.choices)})"
    elif _names_section(flag):
        value = f":{flag.value}:_mcp_tool_filter_sections"
    elif flag.value:
        value = f":{flag.value}:{'_files' if flag.value in _PATHS else ' '}"
    for spelling in flag.spellings:
        joined = ("=" if spelling.startswith("--") else "+") if flag.value else ""
        yield _quoted(f"*{spelling}{joined}[{said}]{value}")


def _fish() -> str:
    lines = ["# mcp-tool-filter completion fish | source"]
    for command in COMMANDS.values():
        said = _fish_quoted(command.summary)
        lines.append(f"{_FISH} -n __fish_use_subcommand -f -a {command.name} -d {said}")
    for command in (*COMMANDS.values(), FILTER):
        seen = f"-n '__fish_seen_subcommand_from {command.name}'"
        where = (
            seen if command.name else f"-n 'not __fish_seen_subcommand_from {' '.join(COMMANDS)}'"
        )
        if _names_server(command):
            named = f"__fish_seen_subcommand_from {command.name}; and {_FISH_CLIENT}"
            lines.append(f"{_FISH} -n '{named}' -f -a '({_CLIENTS} | cut -f3)'")
            seen = f"-n '__fish_seen_subcommand_from {command.name}; and not {_FISH_CLIENT}'"
        if command.choices:
            lines.append(f'{_FISH} {seen} -f -a "{" ".join(command.choices)}"')
        lines += [f"{_FISH} {where} {_fish_flag(flag)}" for flag in command.all_flags]
    return "\n".join(lines) + "\n"


_FISH = "complete -c mcp-tool-filter"
_FISH_CLIENT = f"__fish_seen_subcommand_from {' '.join(CLIENTS)}"


def _fish_flag(flag: Option) -> str:
    words = [f"-l {flag.name}"]
    if flag.short:
        words.append(f"-s {flag.short}")
    if flag.choices:
        words.append(f'-x -a "{" ".join(flag.choices)}"')
    elif _names_section(flag):
        words.append(f"-x -a {_fish_quoted(f'({_OF_FILE})')}")
    elif flag.value:
        words.append("-r -F" if flag.value in _PATHS else "-x")
    return " ".join([*words, f"-d {_fish_quoted(flag.help)}"])


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _quoted(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"
