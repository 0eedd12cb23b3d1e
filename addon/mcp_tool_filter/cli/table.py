"""The table of all commands, for dispatch, help and completion.

Each command declares its own flags. The module of a command is imported only to run it. This module
is longer than our limit because it is one table: a new command can follow the example of the
others.

>>> COMMANDS["scrub"].parse(["a.flow", "b.flow", "--field", "pin"])
{'words': ['a.flow', 'b.flow'], 'field': ['pin']}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mcp_tool_filter import how_to_install
from mcp_tool_filter.cli.flags import WORDS, Given, UsageError, no_such, parse_flags
from mcp_tool_filter.cli.options import CHOICE, GROUPS, OPTIONS, OUR_FILE, Option

TOPICS: Final = {
    "first-tasks": "try it: six tasks of a few minutes",
    "overview": "all your servers at a glance, and what runs",
    "options": "every option, in the launcher and in mitmproxy",
    "settings": "settings in a file or in variables, and exit codes",
    "patterns": "how tool names are matched, and which patterns are refused",
    "stdio": "a server that is a command, and a client that only starts commands",
    "clients": "put the filter in front of a client's servers, and undo it",
    "client-files": "where each client keeps its servers, and what is special there",
    "servers": "one file with several servers, and one port for all of them",
    "merged": "all servers as one: /mcp, profiles, one entry of a client",
    "gateways": "what other gateways lose of two servers behind them",
    "logins": "how you or your clients log in to a server",
    "run": "filter all servers that a client reaches by URL",
    "watch": "calls in the terminal and in the browser",
    "audit": "a log of all calls, in which changes to it show",
    "metrics": "metrics for Prometheus; traces for OpenTelemetry",
    "recordings": "record sessions, replay them with other patterns, and test with them",
    "lock": "a file with the tools that you have approved, and how CI checks it",
    "edits": "other names, texts, hints and parameters for tools that you cannot change",
    "rules": "a file with rules on messages: block, change, limit, notify",
    "rules-details": "what a rule sees, in which order rules run, what is refused",
    "rules-reference": "every condition and action of a rules file, with examples",
    "scale": "several replicas behind a balancer",
    "capacity": "how many requests and clients one replica carries",
    "extensions": "proposed extensions of MCP, and what the filter does with each",
    "troubleshooting": "what error messages mean, and what a client's own setting cannot do",
    "promises": "what the filter guarantees, and the test that proves it",
    "limits": "the largest message, and what the filter costs",
    "platforms": "what is known of macOS and Windows, and what differs there",
    "releases": "what a version number promises, and where a release comes from",
    "changelog": "what has changed, the newest first",
}
_HELP: Final = Option("help", "show this help", short="h", only_typed=True)
_JSON: Final = Option("json", "print JSON", only_typed=True)
_OF_A_FILE: Final = (
    Option(
        "scope",
        "which file to use if several files list the server: user, project, local, or all",
        "SCOPE",
        choices=("user", "project", "local", "all"),
    ),
    Option("all", "all servers of the client", only_typed=True),
    Option("dry-run", "only show what would change", only_typed=True),
    Option("yes", "do not ask", short="y"),
)
SETTINGS: Final = tuple(flag for group in GROUPS.values() for flag in group if not flag.only_typed)
"""The flags that configure the filter."""

_NOT_FOR_ALL: Final = frozenset({
    "upstream", "upstream-cmd", "env", "cwd", "stdio", "header", "endpoint", "inspect",
    "no-browser", "record", "set", "show-secrets",
})  # fmt: skip
"""Settings that are for one server, or need mitmproxy."""
_NEEDS_MITMPROXY: Final = ("inspect", "no-browser", "record", "set", "show-secrets")

CLIENTS: Final = (
    "claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini", "windsurf", "zed",
    "opencode", "copilot", "cline", "kiro", "lmstudio", "goose",
)  # fmt: skip
SHELLS: Final = ("bash", "zsh", "fish")


class Command(NamedTuple):
    name: str
    summary: str
    usage: tuple[str, ...]
    about: str
    flags: tuple[Option, ...] = ()
    """Its own flags; all commands also have --help."""
    has_settings: bool = False
    """True if it also accepts the filter's own flags."""
    is_for_all: bool = False
    """True if it serves several servers."""
    takes_command: bool = False
    """True if it takes a command after --."""
    most_words: int = 0
    """How many words that are not flags it accepts."""
    choices: tuple[str, ...] = ()
    """The possible values of its first word."""
    word: str = ""
    """What its first word is called, if only the choices are possible."""
    least_words: int = 0
    asks: str = ""
    """What the error says if words are missing."""
    notes: str = ""
    more: str = ""
    """The function that renders the end of its help, if that derives from a table elsewhere."""
    runs: str = ""
    """The function that gets the parsed command line; by default ``run`` in the module of
    ``cli/commands`` with the command's name."""

    @property
    def function(self) -> str:
        return self.runs or f"cli.commands.{self.name.replace('-', '_')}.run"

    @property
    def all_flags(self) -> tuple[Option, ...]:
        return (*self.flags, *(SETTINGS if self.has_settings else ()), _HELP)

    def parse(self, argv: Sequence[str]) -> Given:
        """Parse a command line. Raises UsageError for the first mistake in it."""
        self._refuse_flags_of_one_server(argv)
        return parse_flags(
            argv,
            self.all_flags,
            most_words=self.most_words,
            takes_command=self.has_settings or self.takes_command,
            help=self._help,
        )

    def _refuse_flags_of_one_server(self, argv: Sequence[str]) -> None:
        """Say what takes a flag that this command, which is for all servers, does not."""
        names = _NOT_FOR_ALL if self.is_for_all else frozenset()
        for word in argv[: argv.index("--") if "--" in argv else None]:
            flag = word.partition("=")[0].removeprefix("--")
            if not word.startswith("--") or flag not in names - {one.name for one in self.flags}:
                continue
            key = {"upstream": "url", "upstream-cmd": "command"}.get(flag, flag)
            why = f"Write {key} in the table [servers.NAME] of the config file"
            if flag in _NEEDS_MITMPROXY:
                why = f"What can: mcp-tool-filter --server NAME --{flag}"
            raise UsageError(f"{self.name} cannot take --{flag}: it is for one server", why=why)

    @property
    def _help(self) -> str:
        return f"mcp-tool-filter {self.name} --help".replace("  ", " ")

    def check(self, given: Given) -> None:
        """Refuse a line without the words it needs, and values that are no choice."""
        words = given.get(WORDS, [])
        if len(words) < self.least_words:
            listed = f"It must be one of: {', '.join(self.choices)}"
            why = listed if self.word else f"mcp-tool-filter {self.usage[0]}"
            raise UsageError(self.asks, why=why)
        if self.word and words and words[0] not in self.choices:
            help = self._help.replace("help --help", "help")
            raise no_such(self.word, words[0], self.choices, help=help)
        for flag in self.flags:
            for value in given.get(flag.name, ()) if flag.choices else ():
                if flag.name not in OPTIONS and value not in flag.choices:
                    raise no_such(flag.name, value, flag.choices, help=self._help)


FILTER: Final = Command(
    "",
    "",
    usage=(
        "[--deny PATTERN] [FLAGS] -- COMMAND ARGS",
        "--upstream URL [--deny PATTERN] [FLAGS]",
        "--server NAME [FLAGS]",
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
        "try the filter without an MCP server of your own",
        usage=("demo [--deny PATTERN] [--stay | --inspect] [--port PORT]",),
        about="Starts an MCP server with 20 tools and the filter in front of it, and shows what an"
        " agent sees before and after.",
        flags=(
            *(OPTIONS[name] for name in CHOICE),
            Option("stay", "keep both running, so you can connect your own client",
                   only_typed=True),
            OPTIONS["inspect"],
            OPTIONS["no-browser"],
            Option("port", f"listen port (default: {OPTIONS['port'].default} with --stay,"
                   " otherwise any)", "PORT", short="p"),
        ),
    ),
    Command(
        "run",
        "start a client and filter its MCP servers with a URL",
        runs="rooms.forward.command.run",
        usage=("run [--deny PATTERN] [FLAGS] -- CLIENT ARGS",),
        about="Starts a client, such as claude or codex, and sends its traffic through the filter."
        " The filter reads the traffic to the servers in the client's files, and to each --host;"
        " logins work. All other traffic passes unread. At the end, it lists the servers that did"
        " not come through the filter, and the other hosts that the client has used."
        " It does not filter servers that the client starts as commands: use"
        " wrap for these.",
        flags=(
            *(OPTIONS[name] for name in (*CHOICE, "lock", "new-tools", "rules", "shadow")),
            Option("client", "whose files list the servers (default: detected from the command)",
                 "CLIENT", choices=CLIENTS),
            Option("server", "another server that must come through the filter", "URL", many=True),
            Option("host", "another host whose traffic is filtered, perhaps with a port", "NAME",
                   many=True),
            *(OPTIONS[name] for name in (
                "env", "cwd", "port", "message-limit", "max-clients",
            )),
            OPTIONS["ca"]._replace(help="also trust the certificates in this PEM file"),
            *(OPTIONS[name] for name in (
                "insecure", "record", "inspect", "no-browser", "log-format", "audit-log",
                "audit-arguments", "audit-rotate", "dashboard", "metrics-port",
                "metrics-host", "metrics-token", "otel", "verbose", "quiet", "config", "set",
            )),
        ),
        takes_command=True,
        notes="Exit status: that of the client, or 127 if the client does not exist.\n"
        "More: mcp-tool-filter help run",
    ),
    Command(
        "serve",
        "serve all servers of the config file behind one port",
        runs="rooms.serve.command.run",
        usage=(
            "serve [--port PORT] [--config FILE] [FLAGS]",
            "serve --stdio [--profile NAME] [--config FILE] [FLAGS]",
        ),
        about="Serves each server of the config file at http://127.0.0.1:6273/NAME/mcp, in one"
        " process: each with its own patterns, logins and limits, all with one report, one"
        " page and one audit log. A server that cannot start is reported, and the others are"
        " served; it is tried again when a client asks for it. SIGHUP reads the file again."
        " All servers together are one server at /mcp; with --stdio, over stdin and stdout.",
        flags=(
            *(flag for flag in SETTINGS if flag.name not in _NOT_FOR_ALL),
            Option("stdio", "talk to one client over stdin and stdout, as one server",
                   only_typed=True),
            Option("profile", "with --stdio: what this [profiles.NAME] of the file shows", "NAME",
                   only_typed=True),
        ),
        is_for_all=True,
        notes=f"Without --config: {OUR_FILE}\n"
        "More: mcp-tool-filter help servers",
    ),
    Command(
        "doctor",
        "check the upstream, the patterns and the port; suggest fixes",
        usage=(
            "doctor --upstream URL [--deny PATTERN] [FLAGS]",
            "doctor [FLAGS] -- COMMAND ARGS",
            "doctor --server NAME",
            "doctor --config FILE",
            "doctor --client CLIENT",
        ),
        about="Checks Python and mitmproxy, the patterns and other settings, the port, the"
        " connection to the upstream, its transport and revision, the credentials, and its tools."
        " With the servers of a config file, it checks all of them, and what they show together at"
        " /mcp and in each profile: names that are too long or that two servers have, tools that"
        " need tasks, a profile that leaves nothing."
        " With --client, it shows which of the client's servers the command run can filter, and"
        " which ones came through the filter last time, and names the tools that the client refuses"
        " or cuts, with the edit that heals each.",
        flags=(
            _JSON,
            Option("client", "look at the servers in this client's files", "CLIENT",
                 only_typed=True, choices=CLIENTS),
            OPTIONS["server"],
        ),
        has_settings=True,
        notes="Exit status: 0 if everything is fine, else 1.",
    ),
    Command(
        "login",
        "log in to an MCP server with your browser",
        runs="rooms.logins.command.run",
        usage=("login URL [FLAGS]", "login --list"),
        about="Logs in to an MCP server with your browser. From then on, mcp-tool-filter --upstream"
        " URL adds the token to each request that has no credentials of its own, and renews the"
        " token. Your clients need no login. URL is the server's MCP endpoint.",
        flags=(
            Option("list", "list your logins, without secrets"),
            Option("scope", "ask for these scopes (default: the scopes that the server names)",
                 "SCOPE", many=True),
            Option("client-id", "the client id that you registered, or the https URL of a client id"
                 " metadata document", "ID"),
            Option("client-secret", "the secret of this client; '$NAME' reads an environment"
                                  " variable", "SECRET"),
            Option("callback-port", "port of the redirect address http://127.0.0.1:PORT/callback"
                 " (default: any)", "PORT"),
            Option("no-browser", "do not open a browser, only print the address of the login page"),
            Option("ca", "trust the certificates in this PEM file", "FILE"),
            Option("keyring", "store the tokens in the system's keyring, not in a file (needs"
                 f" {how_to_install('keyring')})"),
            Option("timeout", "how long to wait for your login (default: 300)", "SECONDS"),
        ),
        most_words=1,
    ),
    Command(
        "logout",
        "end a login",
        usage=("logout URL", "logout --all"),
        about="Ends a login: it revokes the tokens, if the server supports that, and deletes them"
        " from this machine. URL is the server's MCP endpoint.",
        flags=(Option("all", "end all logins"),),
        most_words=1,
        runs="rooms.logins.command.run_logout",
    ),
    Command(
        "clients",
        "list the MCP servers in your clients' files",
        runs="rooms.clients.command.run",
        usage=("clients [--json]",),
        about="Lists the MCP servers in your clients' configuration files: your own files, and the"
        f" files of the project in the current folder. The clients are {', '.join(CLIENTS)}.",
        flags=(_JSON,),
        notes="Next: mcp-tool-filter wrap CLIENT SERVER --deny PATTERN",
    ),
    Command(
        "status",
        "show all your servers and running filters",
        runs="rooms.status.command.run",
        usage=("status [--json] [--config FILE]", "status --open"),
        about="Asks every server of the config file, and every server that is filtered in a"
        " client's file: can it be reached, how many tools are exposed and hidden, and which"
        " patterns match nothing. It also shows what running filters say: their calls, refusals"
        " and audit logs. --open shows all running filters on one page. The servers in a project's"
        " files are listed, but not started or asked.",
        flags=(
            _JSON,
            OPTIONS["config"],
            Option("timeout", "wait this long for each server (default: 10000)", "MS"),
            Option("open", "show the running filters on a page in your browser",
                   only_typed=True),
            Option("no-browser", "with --open: do not open a browser, only print the address"),
        ),
        notes="Exit status: 0 if all servers were reached that were asked, else 1.",
    ),
    Command(
        "pick",
        "choose in the terminal which tools to hide",
        usage=(
            "pick --upstream URL [FLAGS]",
            "pick [FLAGS] -- COMMAND ARGS",
            "pick --server NAME",
        ),
        about="Lists the server's tools. You choose the tools to hide, and pick prints the deny"
        " pattern for exactly these tools.",
        flags=(
            Option("names", "hide these tools without asking (for scripts)", "A,B", many=True,
                 only_typed=True),
            OPTIONS["server"],
        ),
        has_settings=True,
        notes="Keys: up and down move, space hides or shows a tool, a hides or shows all listed"
        " tools, / searches, enter confirms, esc clears the search, esc or q quits.",
        runs="cli.commands.look.run_pick",
    ),
    Command(
        "lock",
        "keep approved tools in a file, and see what changes",
        runs="rooms.lock.command.run",
        usage=(
            "lock FILE --upstream URL [--deny PATTERN] [FLAGS]",
            "lock FILE [FLAGS] -- COMMAND ARGS",
            "lock FILE --server NAME [FLAGS]",
            "lock --check FILE [--json] [--sarif FILE] …",
            "lock --approve [NAME …] FILE …",
        ),
        about="Writes the server's exposed tools with their whole definitions to a file, which you"
        " review and keep in your repository. --check shows what differs now: tools that are new,"
        " gone, renamed or changed, word by word, and what a change introduces. --approve takes the"
        " present definitions of these tools into the file; without names, of all. The filter's own"
        " flag --lock FILE then exposes only what is in the file.",
        flags=(
            Option("check", "compare the server's tools with the file", only_typed=True),
            Option("approve", "take the present definitions of these tools; without names, all",
                   only_typed=True),
            Option("json", "with --check: print JSON", only_typed=True),
            Option("sarif", "with --check: also write the findings to this file, for code scanning",
                   "FILE", only_typed=True),
            OPTIONS["server"],
        ),
        has_settings=True,
        most_words=_ANY_NUMBER, least_words=1,
        asks="Which file?",
        notes="Exit status of --check: 0 if no tool differs, 1 if something does, 2 if it cannot"
        " tell.\nMore: mcp-tool-filter help lock",
    ),
    Command(
        "wrap",
        "put the filter in front of a server in a client's file",
        usage=(
            "wrap CLIENT SERVER --deny PATTERN [--yes] [--dry-run]",
            "wrap CLIENT SERVER --pick",
            "wrap CLIENT --all --deny PATTERN",
            "wrap CLIENT SERVER --into FILE [--deny PATTERN]",
        ),
        about="Puts the filter in front of a server in a client's file. It asks the server for its"
        " tools, shows how many are hidden and the change, asks you, and keeps a copy of the old"
        " file in a folder of its own. A server that is wrapped keeps"
        " its policy and gets yours, too. To list your servers: mcp-tool-filter clients",
        flags=(
            *(OPTIONS[name] for name in (*CHOICE, "lock", "shadow")),
            Option("pick", "choose the tools to hide in the terminal", only_typed=True),
            Option("into", "move the server with its policy into this file of servers, and start"
                 " the filter with --server NAME; with --all, leave one entry: serve --stdio",
                 "FILE"),
             Option("replace", "let the policy replace that of a wrapped server, even if it shows"
                 " tools that are hidden now", only_typed=True),
            Option("flag", "add another flag, such as --flag=--verbose", "FLAG", many=True),
            *_OF_A_FILE,
        ),
        most_words=2, least_words=1, choices=CLIENTS, word="client",
        asks="Name the client and the server: wrap CLIENT SERVER",
        notes="Undo: mcp-tool-filter unwrap CLIENT SERVER",
        runs="rooms.clients.command.run_wrap",
    ),
    Command(
        "unwrap",
        "undo what wrap did",
        usage=(
            "unwrap CLIENT SERVER [--yes] [--dry-run]",
            "unwrap CLIENT --all",
            "unwrap --all",
        ),
        about="Restores the entry of a server in a client's file to its state before wrap. --all"
        " restores all servers of the client, or without a client of all clients.",
        flags=_OF_A_FILE,
        most_words=2, choices=CLIENTS, word="client",
        asks="Name the client and the server: unwrap CLIENT SERVER",
        runs="rooms.clients.command.run_unwrap",
    ),
    Command(
        "config",
        "print the configuration that a client needs",
        runs="rooms.clients.config_command.run",
        usage=(
            "config CLIENT [--deny PATTERN] [FLAGS] -- COMMAND ARGS",
            "config CLIENT --upstream URL [--deny PATTERN] [FLAGS]",
            "config CLIENT --server NAME [FLAGS]",
        ),
        about=f"Prints the configuration that a client needs to use the filter. CLIENT is one of:"
        f" {', '.join(CLIENTS)}. --host and --port say where the filter will listen. For a"
        f" command, with --stdio and with --server, the client starts the filter itself.",
        flags=(OPTIONS["server"],),
        has_settings=True,
        most_words=1, least_words=1, choices=CLIENTS, word="client",
        asks="Which client? It comes after config",
    ),
    Command(
        "check-pattern",
        "check if patterns are valid and safe",
        usage=("check-pattern [PATTERN …]",),
        about="Checks if patterns are valid and safe. Without a pattern it reads lines of JSON from"
        ' standard input, {"pattern": …, "name": …}, and answers each line at once.',
        most_words=_ANY_NUMBER,
        notes="Exit status: 0 if all patterns are valid and safe, else 1.",
    ),
    Command(
        "replay",
        "show what other patterns would have done to a recording",
        usage=(
            "replay RECORDING … [--deny PATTERN] [FLAGS]",
            "replay --shadow RECORDING … [FLAGS]",
        ),
        about="Replays recorded sessions with other patterns or rules, without a network. It shows"
        " what the filter would have hidden, refused and let through. A RECORDING is a mitmproxy"
        " flow dump.",
        flags=(
            *(OPTIONS[name] for name in (*CHOICE, "lock", "rules")),
            OPTIONS["shadow"]._replace(help="also list each message that would be refused, changed"
                                       " or lose something, as --shadow reports it"),
            _JSON,
            Option("transcript", "print all messages on both sides of the filter"),
            Option("gate", "fail if the filter would refuse a call"),
        ),
        most_words=_ANY_NUMBER, least_words=1,
        asks="Which recording?",
        notes="Exit status: 0; 1 if a recording or pattern is not usable; 3 with --gate if the"
        " filter would have refused a call.\n--shadow shows one line for each message to which"
        " something would happen; all messages are replayed as they were answered.",
        runs="rooms.recordings.command.run_replay",
    ),
    Command(
        "scrub",
        "remove the secrets from a recording",
        usage=("scrub SOURCE TARGET [FLAGS]",),
        about="Removes the secrets from a recording: credentials in headers, cookies, session ids,"
        " values with names such as api_key, password or accessToken in JSON, forms and URLs, and"
        " tokens with a known shape (Bearer, JWT, ghp_, sk-, private keys). Use --field and"
        " --header for other secrets. TARGET is written with mode 0600.",
        flags=(
            Option("field", "another JSON member, form field or URL parameter that is secret",
                 "NAME", many=True),
            Option("header", "another header that is secret", "NAME", many=True),
        ),
        most_words=2, least_words=2,
        asks="Name two files",
        runs="rooms.recordings.command.run_scrub",
    ),
    Command(
        "audit",
        "summarize an audit log, follow it, check it for changes",
        runs="rooms.audit.command.run",
        usage=(
            "audit FILE [FILE …] [--json] [--since TIME]",
            "audit FILE --follow [--json]",
            "audit verify FILE [FILE …] [--last HASH] [--after HASH]",
            "audit suggest FILE [FILE …] [--upstream URL] [--policy]",
        ),
        about="Summarizes an audit log: calls by tool and session, refusals, errors, the slowest"
        " calls. To include rotated files, name them first, oldest first. They may be compressed"
        " (.gz).",
        flags=(
            _JSON,
            Option("since", "only entries since then: 2026-11-18, 2026-11-18T09:30, or 2h, 30m, 7d"
                 " ago", "TIME"),
            Option("follow", "print entries as they are written", short="f"),
            OPTIONS["upstream"],
            Option("last", "with verify: the log must still have the line with this hash", "HASH"),
            Option("after", "with verify: the last hash of older files that you have removed",
                 "HASH"),
            Option("policy", "with suggest: print a rules file that allows the calls in the log"),
        ),
        most_words=_ANY_NUMBER, choices=("verify", "suggest"),
        notes="verify checks that every line has the hash of the line before, and prints the last"
        " hash. The file alone cannot show that somebody changed the last line, removed lines at"
        " the end, or rewrote the whole file. Keep the last hash in another place, and check it"
        " later with --last HASH.\n\n"
        "suggest lists tools that nobody called (with --upstream) and unusual calls, each with the"
        " reason.",
    ),
    Command(
        "rules",
        "check, test and explain a rules file",
        runs="rooms.rules.command.run",
        usage=(
            "rules check FILE",
            "rules test FILE CASES",
            "rules explain FILE MESSAGE [--answers MESSAGE]",
            "rules schema",
        ),
        about="check reports every mistake in a rules file. test runs test cases from a YAML file:"
        " cases: [{name, message or messages, response, expect: pass, block, drop or"
        " modify, rule, code}]. explain shows how each rule judges a message; MESSAGE is a"
        " file, - for standard input, or JSON. schema prints the JSON schema of rules files, for"
        " your editor.",
        flags=(Option("answers", "with explain: the request that a response answers", "MESSAGE"),),
        most_words=3, choices=("check", "test", "explain", "schema"),
        notes="Exit status of check: 0 without mistakes, else 1. Of test: 0 if all cases pass, 1 if"
        " a case fails, 2 if a file is not usable.",
        more="rooms.rules.reference.render_help",
    ),
    Command(
        "schema",
        "print the JSON schema of the config file, or of rules files",
        usage=("schema config|rules",),
        about="Prints a JSON schema, with which editors complete and check the file. Files that the"
        " filter writes name the schema in their first line.",
        most_words=1, least_words=1, choices=("config", "rules"), word="schema",
        asks="Which schema? It comes after schema",
        runs="cli.commands.schema.run",
    ),
    Command(
        "help",
        "print a longer page about a topic",
        usage=("help [TOPIC]",),
        about="Prints a page about options, patterns, commands over stdio, clients, logins, run,"
        " watching, the lock, rules, promises or changes. Without a topic, it lists the topics.",
        most_words=1, choices=tuple(TOPICS), word="topic",
        runs="cli.pages.print_page",
    ),
    Command(
        "man",
        "print the manual page",
        usage=("man",),
        about="Prints the manual page with all of --help: mcp-tool-filter man | man -l -\n"
        "After an installation, this works too: man mcp-tool-filter",
        runs="cli.help.print_manual",
    ),
    Command(
        "addon-path",
        "print the path of the addon script, for mitmdump -s",
        usage=("addon-path",),
        about="Prints the path of the addon script for mitmdump, mitmweb and mitmproxy:\n"
        'mitmdump -s "$(mcp-tool-filter addon-path)" --mode reverse:URL --set deny=PATTERN',
        runs="cli.help.print_addon_path",
    ),
    Command(
        "completion",
        "print a completion script for your shell",
        usage=("completion bash|zsh|fish",),
        about="Prints a script that completes commands and flags. Add the line for your shell"
        ' to its start-up file:\neval "$(mcp-tool-filter completion bash)"\neval "$(mcp-tool-filter'
        ' completion zsh)"\nmcp-tool-filter completion fish | source',
        most_words=1, least_words=1, choices=SHELLS, word="completion for",
        asks="Which shell? It comes after completion",
    ),
)  # fmt: skip
COMMANDS: Final = {command.name: command for command in _ALL}
