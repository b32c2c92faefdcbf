"""Blocking calls that release the interpreter lock: in a thread, or inline without threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

# However slow the disk is for a while.
REST_S_MAX = 1.0
# More calls at once than there ever are, unless many commits read their stages: those wait.
THREADS_MAX = 32


class Job:
    """One call under way; `result` raises what it raised."""

    def __init__(self, ended: Callable[[], None] | None = None) -> None:
        self.done = False
        self.error: BaseException | None = None
        # Called from the thread of the call, when everybody can see that it is done.
        self._ended = ended

    def run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self.error = error
        self.done = True
        if self._ended is not None:
            self._ended()

    def result(self) -> None:
        if self.error is not None:
            raise self.error


class Jobs:
    """Runs a call where it is asked for: the deterministic one."""

    def start(self, call: Callable[[], None], ended: Callable[[], None] | None = None) -> Job:
        job = Job(ended)
        job.run(call)
        return job

    def pause(self) -> None:
        """Lets what is under way go on while the caller waits for it."""

    def rest(self, seconds: float) -> None:
        """In a call: leaves the machine to others for a while."""

    def close(self) -> None:
        """Waits for what is under way; nothing more is started."""


class ThreadJobs(Jobs):
    """One thread for each call under way. They are kept: whoever starts one waits for it to run."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS_MAX, "topics-background")

    def start(self, call: Callable[[], None], ended: Callable[[], None] | None = None) -> Job:
        job = Job(ended)
        self._threads.submit(job.run, call)
        return job

    def close(self) -> None:
        self._threads.shutdown()

    def pause(self) -> None:
        threading.Event().wait(0.0005)

    def rest(self, seconds: float) -> None:
        threading.Event().wait(seconds)


class Background:
    """Sliced work that waits for threads; it says so, because more slices would do nothing then."""

    def __init__(self, *, threads: bool) -> None:
        # Replaceable: a test may have jobs end when it says so.
        self.jobs: Jobs = ThreadJobs() if threads else Jobs()
        self.is_waiting = False
        # Whether there is anybody to leave the machine to; called from the threads.
        self.has_company: Callable[[], bool] = _as_far_as_is_known

    def run(self, call: Callable[[], None]) -> Iterator[None]:
        """Runs a blocking call beside the caller; raises what it raised."""
        yield from self.until_done(call)
        yield

    def until_done(self, call: Callable[[], None]) -> Iterator[None]:
        """The same, for who goes on in the turn in which it has ended."""
        job = self.jobs.start(call)
        try:
            while not job.done:
                yield from self.wait()
        finally:
            # Whoever gives up the work still waits for what is under way.
            while not job.done:
                self.jobs.pause()
        job.result()

    def rest(self, seconds: float) -> None:
        """In a job: leaves the machine to others, if there are any, but not for ever.

        Who rests a hundred times as long as it works is met by one in a hundred of their requests,
        whatever one of its pieces costs them.
        """
        if self.has_company():
            self.jobs.rest(min(seconds, REST_S_MAX))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While whoever asks waits for the work itself, and nothing else is done by this engine."""
        before, self.has_company = self.has_company, _is_alone
        try:
            yield
        finally:
            self.has_company = before

    def wait(self) -> Iterator[None]:
        """A turn that only a thread can bring on."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False


def _as_far_as_is_known() -> bool:
    return True


def _is_alone() -> bool:
    return False
