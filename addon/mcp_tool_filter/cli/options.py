"""The table of all options: each is declared once, here, and all else derives from it.

That is: the command line, the environment and the config file (``cli/flags.py``,
``cli/settings.py``), help, manual page and completion (``cli/help.py``), our options in mitmproxy
(``rooms/mitmproxy/options.py``), and what ``cli/parsing.py`` checks.

>>> OPTIONS["keep-running"].key, KEYS["fail_fast"].variable, KEYS["fail_fast"].text
('fail_fast', 'MCP_TOOL_FILTER_KEEP_RUNNING', 'true')
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

PREFIX: Final = "MCP_TOOL_FILTER_"
OUR_FILE: Final = (
    r"%APPDATA%\mcp-tool-filter\config.toml"
    if sys.platform == "win32"
    else "~/.config/mcp-tool-filter/config.toml"
)
"""The config file that is read if none is named, in words for people."""
ENTRY: Final = "MCP_TOOL_FILTER_ENTRY"
"""The variable by which an entry of a client's file tells its filter who has started it."""

# What an option needs: without it, it has no effect.
A_COMMAND: Final = "a command"
A_URL: Final = "a URL"
A_FETCH: Final = "a fetch at start"
HTTP: Final = "clients over HTTP"

SWITCH: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
"""What a switch may be, in lower case."""

type Texts = str | Sequence[str] | None
"""The value of an option as it was typed: one text, or several; None if it is not set."""


class Option(NamedTuple):
    """An option of the filter, or of one command."""

    name: str
    """As a flag, and in the config file."""
    help: str
    value: str = ""
    """What kind of value it takes, as the help calls it; empty for a switch."""
    short: str = ""
    many: bool = False
    """True if it can be repeated and all values count."""
    only_typed: bool = False
    """True if it only makes sense on the command line, not in the environment or a file."""
    choices: tuple[str, ...] = ()
    default: str = ""
    needs: tuple[str, ...] = ()
    """Without what it has no effect: one of the above, or the name of another option."""
    key: str = ""
    """Its name in mitmproxy and in ``parse_config``; empty if it is only for the launcher."""
    key_help: str = ""
    """Its help in mitmproxy, if that is not the same."""
    negates: bool = False
    """True if the switch turns off what ``key`` names."""

    @property
    def is_number(self) -> bool:
        return (
            self.value in ("PORT", "MS", "SECONDS", "SIZE", "NUMBER", "N") or self.name == "verbose"
        )

    @property
    def selects(self) -> bool:
        """True if it selects tools: an empty value is probably a slip, and an error."""
        return self.value in ("PATTERN", "GLOB", "HINT")

    @property
    def adds_up(self) -> bool:
        """True if its values of all sources count: one more must not disable the others."""
        return self.selects and self.name.startswith("deny")

    @property
    def protects(self) -> bool:
        """True if it names a file such as the rules: an empty value, as of an unset variable, would
        start a filter without it."""
        return self.value == "FILE" and bool(self.key)

    @property
    def spellings(self) -> list[str]:
        return ([f"-{self.short}"] if self.short else []) + [f"--{self.name}"]

    @property
    def variable(self) -> str:
        """The variable that sets it in the environment."""
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def help_in_mitmproxy(self) -> str:
        """Its help as a sentence; mitmproxy shows the default itself."""
        said = self.help.replace(f" (default: {self.default})", "").replace(" (default)", "")
        return self.key_help or f"{said[0].upper()}{said[1:]}."

    @property
    def text(self) -> Texts:
        """The value that it has if it is not set."""
        if self.many:
            return None if self.selects else ()
        return self.default if self.value else "true" if self.negates else "false"


def _flag(name: str, help: str, value: str = "", *, default: str = "", **more: Any) -> Option:
    """Declare an option of the launcher."""
    return Option(name, help.replace("{default}", default), value, default=default, **more)


def _both(name: str, help: str, value: str = "", *, key: str = "", **more: Any) -> Option:
    """Declare an option that also exists in mitmproxy."""
    return _flag(name, help, value, key=key or name.replace("-", "_"), **more)


GROUPS: Final = {
    "What to filter": (
        _flag("upstream", "URL of the MCP server; its path is the MCP endpoint",
              "URL", short="u"),
        _flag("server", "filter this server of the config file, over stdio unless --port is given",
              "NAME", only_typed=True),
        _both("deny", "JavaScript regex: matching tools are removed; separate several with commas",
              "PATTERN", short="d", many=True),
        _both("allow", "JavaScript regex: only matching tools remain",
              "PATTERN", many=True),
        _both("except", "JavaScript regex: matching tools stay although a deny pattern or a hint"
              " would hide them; --allow still counts", "PATTERN", many=True),
        _both("read-only", "only tools that say of themselves that they change nothing"
              " (readOnlyHint)"),
        _both("deny-hint", "hide tools that may be destructive, open-world or not-idempotent, as"
              " far as they do not say otherwise; these are claims of the server", "HINT",
              many=True, choices=("destructive", "open-world", "not-idempotent")),
        _both("deny-glob", "glob such as 'write_*': tools whose whole name matches are removed",
              "GLOB", many=True),
        _both("deny-prompts", "JavaScript regex: prompts with matching names are removed",
              "PATTERN", many=True),
        _both("deny-resources", "JavaScript regex: resources and templates with matching URIs are"
              " removed", "PATTERN", many=True),
        _both("deny-skills", "JavaScript regex: skills with a matching name, path or URI are"
              " removed, with their files", "PATTERN", many=True),
        _both("ignore-case", "patterns ignore upper and lower case"),
        _both("lock", "expose only the tools in this file, if their definitions are equal: see"
              " mcp-tool-filter help lock", "FILE"),
        _both("edits", "TOML file with edits of tools in tables [tools.NAME]: see mcp-tool-filter"
              " help edits", "FILE"),
        _both("new-tools", "tools that appear later: hide them (default), or judge them by the"
              " patterns",
              "HOW", choices=("hide", "judge"), default="hide"),
        _both("shadow", "enforce nothing: only report what would be hidden, refused or changed"),
        _both("strict", "do not start if a pattern matches no tool, or if there is no pattern"),
        _both("header", 'add this header to requests to the MCP endpoint: "Name: value"; $VAR and'
              " ${VAR} are expanded; a client's own credentials are kept",
              "HEADER", short="H", many=True, needs=(A_URL,), key="upstream_headers"),
        _both("login", "use the login stored by mcp-tool-filter login URL: auto or off"
              " (default: {default})", "HOW", choices=("auto", "off"), default="auto",
              needs=(A_URL,)),
        _both("login-through", "clients log in through the proxy: {default} (default), plain"
              " (rewrite only the metadata) or off",
              "HOW", choices=("auto", "plain", "off"), default="auto", needs=(A_URL, HTTP)),
        _both("rules", "YAML file with rules on messages: see mcp-tool-filter rules --help",
              "FILE"),
        _both("endpoint", "the upstream's MCP path, such as /mcp (default: detected)",
              "PATH", needs=(A_URL,)),
    ),
    "A command instead of a URL": (
        _flag("upstream-cmd", "the command, split into words as a shell does (or write it after"
              " --)", "COMMAND"),
        _flag("env", "set an environment variable for the command", "KEY=VALUE", many=True,
              needs=(A_COMMAND,)),
        _flag("cwd", "run the command in this folder", "DIR", needs=(A_COMMAND,)),
        _flag("max-children", "with --port: how many processes of the command may run at once"
              " (default: {default})",
              "NUMBER", default="32", needs=(HTTP,)),
        _flag("stdio", "talk to one client over stdin and stdout; also works with --upstream URL"),
    ),
    "Where to listen": (
        _flag("host", "listen address (default: {default})", "ADDRESS", default="127.0.0.1",
              needs=(HTTP,)),
        _flag("allow-remote", "let everybody who reaches --host use your --header, login or"
              " certificate", needs=(HTTP,)),
        # MCPF on a telephone's keys; the MCP inspector uses MCPI and MCPP
        _flag("port", "listen port (default: {default}); 0 picks a free port",
              "PORT", short="p", default="6273"),
        _both("allowed-hosts", "accept these Host and Origin names too; loopback names always pass",
              "NAME", many=True, needs=(HTTP,)),
        _both("paths", "which paths pass: {default} (default), or mcp for the MCP endpoint and"
              " logins only", "WHICH", choices=("mcp", "all"), default="all", needs=(HTTP,)),
    ),
    "Limits": (
        _both("connection-timeout", "wait this long for the upstream at start (default:"
              " {default})", "MS", default="30000", needs=(A_FETCH,),
              key_help="Milliseconds to wait for the upstream at start."),
        _both("tool-list-timeout", "wait this long for its tool list (default: {default})",
              "MS", default="10000", needs=(A_FETCH,),
              key_help="Milliseconds to wait for its tool list."),
        _both("message-limit", "the largest message that passes (default: {default})",
              "SIZE", default="10MB"),
        _both("max-clients", "how many clients may connect (default: as file descriptors allow)",
              "N", default="auto", needs=(HTTP,)),
        _both("drain", "after SIGTERM, let open calls finish for up to this long (default: 3)",
              "SECONDS", needs=(HTTP,),
              key_help="Seconds for open calls to finish after SIGTERM (default: 3)."),
        _both("keep-running", "keep running when the upstream is lost",
              needs=(A_FETCH,), key="fail_fast", negates=True,
              key_help="End the process with exit code 1 when the upstream is lost."),
    ),
    "TLS": (
        _flag("ca", "trust the certificates in this PEM file for an https upstream", "FILE",
              needs=(A_URL,)),
        _flag("client-cert", "our certificate and key for the upstream, PEM", "FILE",
              needs=(A_URL,)),
        _flag("cert", "certificate and key for clients, PEM (default: signed by mitmproxy's CA)",
              "FILE", needs=(HTTP,)),
        _flag("insecure", "do not verify the upstream's certificate", short="k", needs=(A_URL,)),
    ),
    "Preview": (
        _flag("list-tools", "show which tools would be hidden and why, then exit", only_typed=True),
        _flag("dry-run", "print the start-up report, then exit", only_typed=True),
        _flag("json", "with --list-tools or --dry-run: print JSON", only_typed=True),
    ),
    "Watch": (
        _flag("inspect", "run under mitmweb and open it in the browser"),
        _flag("no-browser", "with --inspect: do not open a browser", needs=(HTTP,)),
        _flag("record", "write all flows to this file, as mitmdump -w does", "FILE", short="w"),
        _both("show-secrets", "with --inspect or --record: show tokens (default: masked)",
              needs=(HTTP,),
              key_help="Show tokens in mitmweb, in recordings, and in the terminal."),
        _flag("log-format", "show each call, list and refusal as {default} (default), json, or"
              " none", "HOW", choices=("text", "json", "none"), default="text"),
        _both("audit-log", "append an audit log (JSON lines) to this file", "FILE"),
        _both("audit-arguments", "arguments and results in the audit log: none, {default} (default)"
              " or full",
              "HOW", choices=("none", "hash", "full"), default="hash", needs=("audit-log",)),
        _both("audit-rotate", "rotate it at this size or age (default: {default})",
              "SIZE,AGE", default="100MB,1d", needs=("audit-log",),
              key_help="Size and age at which the audit log is rotated and compressed."),
        _both("dashboard", "serve a page with calls, tools and switches on this local port",
              "PORT"),
        _both("metrics-port", "serve Prometheus metrics, /livez and /readyz on this port", "PORT"),
        _both("metrics-host", "the address of --metrics-port (default: {default})", "ADDRESS",
              default="127.0.0.1", needs=("metrics-port",),
              key_help="The address of metrics_port."),
        _both("metrics-token", "name tools in /metrics only for clients with this bearer token;"
              " $VAR and ${VAR} are expanded", "TOKEN", needs=("metrics-port",)),
        _both("otel", "send traces, metrics and audit entries to an OpenTelemetry collector; OTEL_*"
              " variables configure it"),
        _flag("verbose", "print more; twice: even more", short="v", many=True),
        _flag("quiet", "print only errors, and warnings about patterns", short="q"),
    ),
    "More": (
        _flag("config", "read settings from this TOML file (default:"
              f" {OUR_FILE}, if it is there)", "FILE"),
        _flag("set", "set any mitmproxy option", "OPTION=VALUE", many=True, needs=(HTTP,)),
        _flag("help", "show this help", short="h", only_typed=True),
        _flag("version", "show the version", only_typed=True),
    ),
}  # fmt: skip
FOR_MITMPROXY: Final = (
    _both("host", "forward proxies: filter the traffic to these hosts, host:port or host", "HOST",
          many=True, key="hosts"),
)  # fmt: skip
"""Options that only mitmproxy's modes need; ``run`` has flags of these names for them."""
GONE: Final = {
    "audit-fsync": "Leave it out: the audit log is synced to the disk once a second",
    "fast": "Leave it out: there are no speed-ups to turn off",
    "format": "Use --json, or leave it out: --list-tools prints a table",
    "header-override": "Remove the credentials from the client's settings: then it gets your"
                       " headers",
    "header-paths": "Leave it out: your headers go to the MCP endpoint only",
    "raw-hosts": "Leave it out: connections to hosts that nobody has named pass unread",
    "require-list": "Log in before the start: mcp-tool-filter login URL",
    "tools-list": "Leave it out: the filter asks the upstream whenever its snapshot may be wrong",
}  # fmt: skip
"""Options that no longer exist, and what to do instead. Whoever sets one may rely on it, so it is
refused, as a flag, as a setting and in mitmproxy."""
CHOICE: Final = (
    "deny", "except", "deny-glob", "deny-prompts", "deny-resources", "deny-skills", "allow",
    "read-only", "deny-hint", "ignore-case",
)  # fmt: skip
"""The options that say what is hidden, also for commands that take no others."""
OPTIONS: Final = {option.name: option for group in GROUPS.values() for option in group}
KEYS: Final = {option.key: option for option in (*OPTIONS.values(), *FOR_MITMPROXY) if option.key}


def instead_of(name: str) -> str | None:
    """Say what to do instead of an option that no longer exists; None if it never did.

    >>> instead_of("--audit-fsync") == instead_of("AUDIT_FSYNC") == instead_of("audit_fsync")
    True
    """
    return GONE.get(name.lower().removeprefix("--").replace("_", "-"))
