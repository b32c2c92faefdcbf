"""docs/cli.md, made from the commands themselves.

python -m tests.support.cli_reference    # writes it anew
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topics.cli.commands import COMMANDS, loaded
from topics.cli.main import HINTS

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEAD = """# The command line

This page is made from the commands themselves (`python -m tests.support.cli_reference`).

Commands that speak to a server take `--url` and `--token`, or `TOPICS_URL` (else
http://127.0.0.1:4000) and `TOPICS_TOKEN`, or a [profile](#profiles). Tables and colours are for
people; with `--json` standard output is one JSON value and nothing else (`tail -f --json`: an
object a line). What is said besides goes to standard error. An error is one line that says what to
try.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | what was asked about is not so: no such topic, nothing to claim, a check that failed |
| 2 | usage |
| 3 | the server or the store can not be reached |
| 130 | interrupted |

Times are written 90s, 10m, 1.5h, 7d; sizes 4096, 64k, 10MiB.

## Profiles

Servers that are used often have names in `~/.config/topics/config.toml` (or under
`XDG_CONFIG_HOME`):

```toml
[profiles.default]
url = "http://127.0.0.1:4000"

[profiles.production]
url = "https://topics.example.com"
token = "key"
ca_file = "~/company-ca.pem"
```

`topics --profile production topic ls` uses one, and so does `TOPICS_PROFILE=production`; without
either, `default`. `--url` and `--token` win over everything, a profile that is named with
`--profile` over `TOPICS_URL` and `TOPICS_TOKEN`, and these over the other profiles. The token of a
profile is sent to its own url only. `topics config` says what is used and where it came from. The
file may have the table `[server]` too: one file for both, which a server reads where `topics serve
--config` names it, and only there.

## Completion

`topics --install-completion` teaches bash, zsh, fish or PowerShell, whichever runs it, to complete
commands and options; it takes effect in the next shell. `topics --show-completion` prints what it
would add, for those who keep their files themselves.
"""
# Its options are the settings, which have a page of their own.
WITHOUT_OPTIONS = {"serve": "Its options are in [server.md](server.md)."}
# Where a command speaks to a server, these need not be said each time.
COMMON = {"url", "token", "as_json", "help"}


def generated() -> str:
    parts = [HEAD]
    for name in COMMANDS:
        command = loaded(name)
        leaves: dict[str, Any] = getattr(command, "commands", {})
        if leaves:
            parts.append(f"## topics {name}\n\n{COMMANDS[name]}\n")
            parts += [_leaf(f"topics {name} {leaf}", leaves[leaf], "###") for leaf in leaves]
        else:
            parts.append(_leaf(f"topics {name}", command, "##", WITHOUT_OPTIONS.get(name)))
    hints = "\n".join(f"- `{code}`: {hint}." for code, hint in HINTS.items())
    parts.append(f"## What to try\n\n{hints}\n")
    return "\n".join(parts)


def _leaf(title: str, command: Any, mark: str, instead: str | None = None) -> str:
    lines = [
        f"{mark} {title}",
        "",
        "```",
        f"{title} {' '.join(_usage(command))}".strip(),
        "```",
        "",
    ]
    for paragraph in inspect.cleandoc(command.help).split("\n\n"):
        text = " ".join(paragraph.split())
        if text.startswith("Example: "):
            lines += ["```sh", text.removeprefix("Example: "), "```", ""]
        else:
            lines += [text, ""]
    if instead is not None:
        return "\n".join([*lines, instead, ""])
    rows = [
        f"| `{_spelling(one)}` | {one.help} |".replace("|[", r"\|[")
        for one in command.params
        if one.name not in COMMON and one.param_type_name == "option"
    ]
    if rows:
        lines += ["| option | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _usage(command: Any) -> Iterator[str]:
    if any(one.param_type_name == "option" for one in command.params):
        yield "[OPTIONS]"
    for one in command.params:
        if one.param_type_name == "argument":
            text = (one.metavar or one.name.upper()) + ("..." if one.nargs == -1 else "")
            yield text if one.required else f"[{text}]"


def _spelling(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    metavar = (option.metavar or "").replace("|", "/")
    return f"{names} {metavar}".strip()


if __name__ == "__main__":
    PAGE.write_text(generated())
