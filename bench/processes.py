"""Measuring in a process of its own: memory and recovery mean nothing in a used one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `module.function(*arguments)` in a new interpreter and returns its JSON result."""
    code = (
        "import json, sys, importlib\n"
        "module, name, arguments = json.loads(sys.argv[1])\n"
        "result = getattr(importlib.import_module(module), name)(*arguments)\n"
        "print('\\n' + json.dumps(result), flush=True)\n"
        # As a kill would end it: no destructors, no flushing of the engine.
        "import os; os._exit(0)\n"
    )
    call = json.dumps([function.__module__, function.__qualname__, arguments])
    done = subprocess.run(
        [sys.executable, "-c", code, call], check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{function.__qualname__} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def resident_bytes() -> int:
    with open("/proc/self/statm") as source:
        return int(source.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
