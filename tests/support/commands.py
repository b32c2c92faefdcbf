"""The `topics` command in this process, which has paid for all imports already."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from typing import Any
from unittest import mock

import pytest

from tests.support.servers import environment
from topics.cli import main


def here(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, with nothing on its standard input."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["topics", *arguments]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main.command()
    out.flush()
    text = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code or 0, text, err.getvalue())


class Topics:
    """The command, with the server in its environment."""

    def __init__(self, url: str) -> None:
        self.environment = environment(TOPICS_URL=url, NO_COLOR="1")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "topics", *arguments], env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(
        self, *arguments: str, stdin: str = "", code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        if stdin:
            process = self.start(*arguments)
            out, err = process.communicate(stdin, timeout=60)
            done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
        else:
            done = here(*arguments, environment=self.environment)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def on_terminal(self, *arguments: str) -> str:
        """What a person sees on standard error."""
        near, far = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "topics", *arguments], env=self.environment | {"TERM": "xterm"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=far,
        )  # fmt: skip
        os.close(far)
        seen = b""
        # The end of a terminal is an error.
        with contextlib.suppress(OSError), open(near, "rb", buffering=0) as terminal:
            while part := terminal.read(4096):
                seen += part
        assert process.wait(30) == 0, seen
        return seen.decode()

    def json(self, *arguments: str, stdin: str = "", code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", stdin=stdin, code=code).stdout)
