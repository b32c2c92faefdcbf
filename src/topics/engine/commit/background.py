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


class Jobs:
    """Runs a call where it is asked for: the deterministic one."""

    def start(self, call: Callable[[], None]) -> Job:
        job = Job()
        job.run(call)
        return job

    def pause(self) -> None:
        """Lets what is under way go on while the caller waits for it."""


class ThreadJobs(Jobs):
    """One thread for each call."""

    def start(self, call: Callable[[], None]) -> Job:
        job = Job()
        threading.Thread(target=job.run, args=(call,), name="topics-background").start()
        return job

    def pause(self) -> None:
        threading.Event().wait(0.0005)
