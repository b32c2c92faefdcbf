"""The `topics` command in this process, which has paid for all imports already."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from unittest import mock

import pytest

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
        main.main()
    out.flush()
    text = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code or 0, text, err.getvalue())
