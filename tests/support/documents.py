"""The code blocks of README.md and docs/, and a place in which a page's blocks run in order."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import environment

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n) {4}\S.*")
PLACES = re.compile(r"(localhost|127\.0\.0\.1):4000")
# So long a command that would go on for ever is watched.
ENDLESS_S = 5
# What there is of the machine beside the page: `curl` that sees refusals as failures and leaves a
# stream after a while, `topics` that is this one; a server that a page starts goes on behind it.
CURL = """#!/bin/sh
for word; do
    if [ "$word" = -N ]; then
        CURL -sS --fail-with-body --max-time 2 "$@"
        code=$?
        test $code = 28 && exit 0
        exit $code
    fi
done
exec CURL -sS --fail-with-body --max-time 30 "$@"
"""
TOPICS = """#!/bin/sh
case "$1 $2 " in
serve*)
    PYTHON -m topics "$@" --port 0 --port-file serving.$$ > serving.log 2>&1 < /dev/null &
    echo $! >> serving.pids
    while [ ! -s serving.$$ ]; do
        kill -0 $! || { cat serving.log >&2; exit 1; }
        sleep 0.05
    done ;;
"tail -f"*|top\\ *|"queue work"*)
    timeout SECONDS PYTHON -m topics "$@"
    code=$?
    test $code = 124 && exit 0
    exit $code ;;
*) exec PYTHON -m topics "$@" ;;
esac
"""
# For machines without it: what it is given has to be there, and is shown as it is.
JQ = "#!/bin/sh\nexec cat\n"


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str

    @property
    def first_line(self) -> str:
        return self.code.partition("\n")[0]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    return ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    found = []
    for match in FENCED.finditer(text):
        code = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE) if match[1] else match[3]
        found.append(Block(page, text.count("\n", 0, match.start()) + 1, match[2], code))
    return found


class Desk:
    """A directory with the commands that the pages use, where a server answers on `port`."""

    def __init__(self, path: Path, port: int) -> None:
        self.path, self.port = path, port
        commands = path / "bin"
        commands.mkdir(parents=True)
        curl, jq = shutil.which("curl"), shutil.which("jq")
        assert curl is not None
        scripts = {"curl": CURL.replace("CURL", curl), "topics": TOPICS}
        if jq is None:
            scripts["jq"] = JQ
        for name, text in scripts.items():
            text = text.replace("PYTHON", sys.executable).replace("SECONDS", str(ENDLESS_S))
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        self.environment = environment(
            TOPICS_URL=f"http://127.0.0.1:{port}", NO_COLOR="1",
            PATH=f"{commands}:{os.environ['PATH']}",
        )  # fmt: skip

    def here(self, code: str) -> str:
        """The code with the server of this test in the place of the reader's own."""
        return PLACES.sub(f"127.0.0.1:{self.port}", code)

    def shell(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-ec", self.here(code)], cwd=self.path, env=self.environment, text=True,
            capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the servers that the page has started."""
        pids = self.path / "serving.pids"
        for pid in map(int, pids.read_text().split() if pids.exists() else ()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                for _ in range(1000):
                    time.sleep(0.02)
                    os.kill(pid, 0)
                raise TimeoutError(f"the server of a page does not end: {pid}")
