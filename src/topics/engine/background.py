"""Blocking calls that release the interpreter lock: in a thread, or inline without threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Job:
    """One call under way; `result` raises what it raised."""

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None

    def run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self.error = error
        self.done = True

    def result(self) -> None:
        if self.error is not None:
            raise self.error


def pause() -> None:
    """Lets other threads go on while this one waits for them."""
    threading.Event().wait(0.0005)


def start(call: Callable[[], None], *, in_thread: bool) -> Job:
    job = Job()
    if in_thread:
        threading.Thread(target=job.run, args=(call,), name="topics-background").start()
    else:
        job.run(call)
    return job
