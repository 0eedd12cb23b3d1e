"""Every command, once: dispatch, help and completion read it here.

Each command declares its own flags. A module that runs a command is imported only for that. The
module is long because it is one table: whoever adds a command sees how the others describe theirs.

>>> COMMANDS["scrub"].parse(["a.flow", "b.flow", "--field", "pin"])
{'words': ['a.flow', 'b.flow'], 'field': ['pin']}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mcp_tool_filter.cli.settings.flags import DEFAULT_PORT, FLAGS, GROUPS, Flag, Given, parse_flags

TOPICS: Final = (
    "options", "patterns", "stdio", "clients", "logins", "run", "watch", "rules", "promises",
    "changelog",
)  # fmt: skip
_HELP: Final = Flag("help", "show this help", short="h", only_typed=True)
_JSON: Final = Flag("json", "print JSON", only_typed=True)
_OF_A_FILE: Final = (
    Flag(
        "scope",
        "where several files list the server: user, project or local",
        "SCOPE",
        choices=("user", "project", "local"),
    ),
    Flag("dry-run", "only show what would change", only_typed=True),
    Flag("yes", "do not ask", short="y"),
)
SETTINGS: Final = tuple(flag for flag in FLAGS.values() if not flag.only_typed)
"""The flags that say what the filter should do."""

CLIENTS: Final = (
    "claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini", "windsurf", "zed",
)  # fmt: skip
SHELLS: Final = ("bash", "zsh", "fish")


class Command(NamedTuple):
    name: str
    module: str
    """In ``cli.commands``; its function ``run`` gets what was typed after the name."""
    summary: str
    usage: tuple[str, ...]
    about: str
    flags: tuple[Flag, ...] = ()
    """Its own; all have --help."""
    has_settings: bool = False
    """It understands the flags of the filter itself, too."""
    takes_command: bool = False
    """A command stands after --."""
    most_words: int = 0
    """So many words that are no flags may be given."""
    choices: tuple[str, ...] = ()
    """What its first word can be."""
    notes: str = ""

    @property
    def all_flags(self) -> tuple[Flag, ...]:
        return (*self.flags, *(SETTINGS if self.has_settings else ()), _HELP)

    def parse(self, argv: Sequence[str]) -> Given:
        """Read a command line. Raises UsageError for the first thing that is wrong with it."""
        return parse_flags(
            argv,
            self.all_flags,
            most_words=self.most_words,
            takes_command=self.has_settings or self.takes_command,
            help=f"mcp-tool-filter {self.name} --help".replace("  ", " "),
        )


FILTER: Final = Command(
    "",
    "proxy",
    "",
    usage=(
        "[--deny PATTERN] [FLAGS] -- COMMAND ARGS",
        "--upstream URL [--deny PATTERN] [FLAGS]",
        "COMMAND",
    ),
    about="",
    flags=tuple(flag for group in GROUPS.values() for flag in group if flag.name != "help"),
    has_settings=False,
)

_ANY_NUMBER: Final = 10_000

_ALL: Final = (
    Command(
        "demo",
        "demo",
        "see it at work, without an MCP server of your own",
        usage=("demo [--deny PATTERN] [--allow PATTERN] [--stay | --inspect] [--port PORT]",),
        about="Starts an MCP server with 20 tools and the filter in front of it, and shows what an"
        " agent sees before and after.",
        flags=(
            FLAGS["deny"],
            FLAGS["allow"],
            Flag("stay", "keep both running, for a client of yours", only_typed=True),
            FLAGS["inspect"],
            FLAGS["no-browser"],
            Flag("port", f"listen port (default with --stay: {DEFAULT_PORT}; else any)",
                 "PORT", short="p"),
        ),
    ),
    Command(
        "run",
        "run",
        "start a client whose MCP servers with a URL are filtered; no file changes",
        usage=("run [--deny PATTERN] [FLAGS] -- CLIENT ARGS",),
        about="Starts a client, such as claude or codex, so that it sends its traffic through us."
        " We filter MCP, to whatever URL it goes, logins included; all other traffic passes"
        " untouched. At the end it says which servers in the client's files did not come through"
        " the filter. It does not see servers that the client starts as commands: use wrap.",
        flags=(
            *(FLAGS[name] for name in (
                "deny", "allow", "deny-glob", "ignore-case", "new-tools", "rules",
            )),
            Flag("client", "whose files list the servers (default: known by the command)",
                 "CLIENT", choices=CLIENTS),
            Flag("server", "a further server that must come through the filter", "URL", many=True),
            *(FLAGS[name] for name in ("env", "cwd", "port", "message-limit", "max-clients")),
            FLAGS["ca"]._replace(help="trust the certificates in this PEM file, too"),
            *(FLAGS[name] for name in (
                "insecure", "record", "inspect", "no-browser", "log-format", "audit-log",
                "audit-arguments", "audit-rotate", "audit-fsync", "dashboard", "metrics-port",
                "otel", "verbose", "quiet", "config", "fast", "set",
            )),
        ),
        takes_command=True,
        notes="Exit status: the client's; 127 if there is no such client.\nMore: mcp-tool-filter"
        " help run",
    ),
    Command(
        "doctor",
        "doctor",
        "check the upstream, the patterns and the port, and say what to do",
        usage=(
            "doctor --upstream URL [--deny PATTERN] [FLAGS]",
            "doctor [FLAGS] -- COMMAND ARGS",
            "doctor --client CLIENT",
        ),
        about="Checks one thing after another: Python and mitmproxy, the patterns and other"
        " settings, the port, whether the upstream can be reached, how it speaks MCP, whether it"
        " lets us in, and its tools. With --client: which of the client's servers run filters, and"
        " which it has seen the last time.",
        flags=(
            _JSON,
            Flag("client", "look at the servers in this client's files", "CLIENT",
                 only_typed=True, choices=CLIENTS),
        ),
        has_settings=True,
        notes="Exit status: 0 if everything is fine, else 1.",
    ),
    Command(
        "login",
        "login",
        "log in to an MCP server with your browser",
        usage=("login URL [FLAGS]", "login --list"),
        about="Logs in to an MCP server with your browser. From then on, mcp-tool-filter --upstream"
        " URL sends the token with each request that brings no credentials of its own, and renews"
        " it. Your clients need no login. URL is the server's MCP endpoint.",
        flags=(
            Flag("list", "show the logins that there are, without secrets"),
            Flag("scope", "ask for these rights (default: those that the server names)",
                 "SCOPE", many=True),
            Flag("client-id", "a client that you have registered, or the https URL of a client id"
                 " metadata document", "ID"),
            Flag("client-secret", "its secret; '$NAME' reads a variable", "SECRET"),
            Flag("callback-port", "where the browser comes back to:"
                 " http://127.0.0.1:PORT/callback (default: any)", "PORT"),
            Flag("no-browser", "only print the page's address, for a device without a browser"),
            Flag("ca", "trust the certificates in this PEM file", "FILE"),
            Flag("keyring", "keep the tokens in the system's keyring, not in a file (needs"
                 " pip install 'mcp-tool-filter[keyring]')"),
            Flag("timeout", "how long to wait for you (default: 300)", "SECONDS"),
        ),
        most_words=1,
    ),
    Command(
        "logout",
        "logout",
        "end a login",
        usage=("logout URL", "logout --all"),
        about="Ends a login: its tokens are revoked, where the server can do that, and removed from"
        " this machine. URL is the server's MCP endpoint.",
        flags=(Flag("all", "end all logins"),),
        most_words=1,
    ),
    Command(
        "clients",
        "clients",
        "list the MCP servers in your clients' files",
        usage=("clients [--json]",),
        about="Lists the MCP servers that it finds in the files of Claude Code, Claude Desktop,"
        " Cursor, VS Code, Codex, Gemini, Windsurf and Zed: yours, and those of the current"
        " folder's project.",
        flags=(_JSON,),
        notes="Next: mcp-tool-filter wrap CLIENT SERVER --deny PATTERN",
    ),
    Command(
        "pick",
        "pick",
        "choose in the terminal which tools to hide",
        usage=("pick --upstream URL [FLAGS]", "pick [FLAGS] -- COMMAND ARGS"),
        about="Lists the server's tools. Choose those to hide; it prints the deny pattern for"
        " exactly these.",
        flags=(Flag("names", "hide these tools, and ask nothing (for scripts)", "A,B",
                    many=True, only_typed=True),),
        has_settings=True,
        notes="Keys: up and down move, space hides or shows a tool, a does so with all that are"
        " listed,\n/ searches, enter ends, q quits.",
    ),
    Command(
        "wrap",
        "wrap",
        "put the filter in front of a server in a client's file",
        usage=(
            "wrap CLIENT SERVER --deny PATTERN [--allow PATTERN] [--yes] [--dry-run]",
            "wrap CLIENT SERVER --pick",
        ),
        about="Puts the filter in front of a server in a client's file: it shows what changes,"
        " asks, and keeps the old file beside the new one. See the servers you have"
        " with: mcp-tool-filter clients",
        flags=(
            FLAGS["deny"],
            FLAGS["allow"],
            FLAGS["deny-glob"],
            FLAGS["ignore-case"],
            Flag("pick", "choose the tools to hide in the terminal", only_typed=True),
            Flag("flag", "another flag of the filter, such as --flag=--verbose", "FLAG", many=True),
            *_OF_A_FILE,
        ),
        most_words=2,
        choices=CLIENTS,
        notes="Undo: mcp-tool-filter unwrap CLIENT SERVER",
    ),
    Command(
        "unwrap",
        "unwrap",
        "undo what wrap did",
        usage=("unwrap CLIENT SERVER [--yes] [--dry-run]",),
        about="Restores a server in a client's file as it was before wrap.",
        flags=(
            *_OF_A_FILE,
        ),
        most_words=2,
        choices=CLIENTS,
    ),
    Command(
        "config",
        "client_config",
        "print what a client needs to use the filter",
        usage=(
            "config CLIENT [--deny PATTERN] [FLAGS] -- COMMAND ARGS",
            "config CLIENT --upstream URL [--deny PATTERN] [FLAGS]",
        ),
        about=f"Prints what a client needs to use the filter. CLIENT is one of:"
        f" {', '.join(CLIENTS)}. --host and --port say where the filter will listen. For a"
        f" command, and with --stdio, the client starts the filter itself.",
        has_settings=True,
        most_words=1,
        choices=CLIENTS,
    ),
    Command(
        "check-pattern",
        "check_pattern",
        "say whether patterns may be used to deny or allow tools",
        usage=("check-pattern [PATTERN …]",),
        about="Says whether patterns may be used to deny or allow tools. Without a pattern it reads"
        ' lines of JSON, {"pattern": …, "name": …}, and answers each at once.',
        most_words=_ANY_NUMBER,
        notes="Exit status: 0 if all of them may be used, else 1.",
    ),
    Command(
        "replay",
        "replay",
        "say what a policy would have done to a recorded session",
        usage=("replay RECORDING … [--deny PATTERN] [--allow PATTERN] [--rules FILE] [FLAGS]",),
        about="Goes through recorded sessions with other patterns, without a network: what would"
        " have been hidden, refused, let through? A RECORDING is a flow dump of mitmproxy's.",
        flags=(
            FLAGS["deny"],
            FLAGS["allow"],
            FLAGS["rules"],
            _JSON,
            Flag("transcript", "print everything that was said, on both sides"),
            Flag("gate", "fail if a call would be refused"),
        ),
        most_words=_ANY_NUMBER,
        notes="Exit status: 0; 1 if a recording or pattern cannot be used; 3 with --gate if a call"
        " would have\nbeen refused.",
    ),
    Command(
        "scrub",
        "scrub",
        "take the secrets out of a recording",
        usage=("scrub SOURCE TARGET [FLAGS]",),
        about="Takes the secrets out of a recording: credentials in headers, cookies, session ids,"
        " values with names such as api_key, password or accessToken in JSON, forms and URLs, and"
        " tokens that are known by their shape (Bearer, JWT, ghp_, sk-, private keys). Name"
        " whatever else is secret. TARGET is written with mode 0600.",
        flags=(
            Flag("field", "a further secret JSON member, form field or URL parameter",
                 "NAME", many=True),
            Flag("header", "a further secret header", "NAME", many=True),
        ),
        most_words=2,
    ),
    Command(
        "audit",
        "audit",
        "read an audit log, follow it, and check that no line was changed",
        usage=(
            "audit FILE [FILE …] [--json] [--since TIME]",
            "audit FILE --follow [--json]",
            "audit verify FILE [FILE …] [--last HASH]",
            "audit suggest FILE [FILE …] [--upstream URL] [--policy]",
        ),
        about="Adds up what an audit log says: calls by tool and session, refusals, errors, the"
        " slowest calls. Files that were put aside can be named before it, oldest first, also"
        " compressed (.gz).",
        flags=(
            _JSON,
            Flag("since", "only entries from this time on: 2026-11-18, 2026-11-18T09:30, or 2h,"
                 " 30m, 7d ago", "TIME"),
            Flag("follow", "print entries as they are written", short="f"),
            FLAGS["upstream"],
            Flag("last", "with verify: the line with this hash must still be there", "HASH"),
            Flag("policy", "with suggest: print a rules file that allows what was seen"),
        ),
        most_words=_ANY_NUMBER,
        choices=("verify", "suggest"),
        notes="verify checks that every line carries the hash of the line before, and prints the"
        " last hash. It\ncannot see by itself that the last line was changed, that lines were cut"
        " off the end, or that\nsomebody wrote the whole file anew: keep the last hash elsewhere,"
        " and --last HASH shows it.\n\n"
        "suggest names tools that were never called (with --upstream), and calls that are unlike"
        " the others,\neach with its reason.",
    ),
    Command(
        "rules",
        "rules",
        "check a rules file, test it, and ask it why",
        usage=(
            "rules check FILE",
            "rules test FILE CASES",
            "rules explain FILE MESSAGE [--answers MESSAGE]",
            "rules schema",
        ),
        about="check reports every mistake in a rules file. test judges the messages of test cases,"
        " a YAML file: cases: [{name, message or messages, response, expect: pass, block, drop or"
        " modify, rule, code}]. explain shows which rules judge a message, and how; MESSAGE is a"
        " file, - for standard input, or JSON. schema prints the JSON schema of rules files, for"
        " your editor.",
        flags=(Flag("answers", "with explain: the request that a response answers", "MESSAGE"),),
        most_words=3,
        choices=("check", "test", "explain", "schema"),
        notes="Exit status of check: 0 if there is no mistake, else 1. Of test: 0 if everything is"
        " judged as\nexpected, 1 if not, 2 without usable files.",
    ),
    Command(
        "help",
        "help_topic",
        "print a page that explains more",
        usage=("help [TOPIC]",),
        about="Prints a page: the options, patterns, commands over stdio, clients, logins, run,"
        " watching, rules, or what is promised. Without a topic it names them.",
        most_words=1,
        choices=TOPICS,
    ),
    Command(
        "man",
        "man",
        "print the manual page",
        usage=("man",),
        about="Prints the manual page, which has all of --help: mcp-tool-filter man | man -l -\n"
        "An installed package has it already: man mcp-tool-filter",
    ),
    Command(
        "addon-path",
        "addon_path",
        "print the path of the addon script, for mitmdump -s",
        usage=("addon-path",),
        about="Prints the path of the addon script, which mitmdump, mitmweb and mitmproxy load:\n"
        'mitmdump -s "$(mcp-tool-filter addon-path)" --mode reverse:URL --set deny=PATTERN',
    ),
    Command(
        "completion",
        "completion",
        "print a completion script for your shell",
        usage=("completion bash|zsh|fish",),
        about="Prints a script that completes commands and flags, for the file that your shell"
        ' reads first:\neval "$(mcp-tool-filter completion bash)"\neval "$(mcp-tool-filter'
        ' completion zsh)"\nmcp-tool-filter completion fish | source',
        most_words=1,
        choices=SHELLS,
    ),
)  # fmt: skip
COMMANDS: Final = {command.name: command for command in _ALL}
