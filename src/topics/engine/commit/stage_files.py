"""The files of stages: written, read and removed beside the engine's thread.

One call is under way at a time for writing and removing, and it does everything that gathered
meanwhile: as many files as there are, and one sync of their directory. Nothing of it is an error of
the log: a file that could not be written is not there, and whoever waits for it is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from topics.engine.commit.background import Background, Job
from topics.errors import StorageError, TopicsError
from topics.storage import stage_file
from topics.storage.datadir import DataDir
from topics.storage.disk_errors import typed
from topics.storage.fs import discard, join, write_whole
from topics.storage.stage_file import StageId

# Told with what went wrong, or None.
Ended = Callable[[TopicsError | None], None]


@dataclass(slots=True)
class Work:
    """Something to be done with a file before the next sync of the directory."""

    call: Callable[[], None]
    ended: Ended
    error: OSError | None = None

    def run(self) -> None:
        try:
            self.call()
        except OSError as error:
            self.error = error


class StageFiles:
    def __init__(self, data: DataDir, background: Background, notify: Callable[[], None]) -> None:
        self._data = data
        self._background = background
        # Called from the thread of a call that has ended, for `poll`.
        self._notify = notify
        self._pending: list[Work] = []
        self._writing: tuple[Job, list[Work]] | None = None
        # What has ended and was not told yet, because somebody failed to take an answer.
        self._told: deque[tuple[Work, BaseException | None]] = deque()
        self._reading: list[tuple[Job, Callable[[Job], None]]] = []

    @property
    def is_busy(self) -> bool:
        return self._writing is not None or bool(self._pending or self._reading or self._told)

    # -- what is asked for -------------------------------------------------------------------

    def write(self, stage: StageId, parts: Sequence[bytes], ended: Ended) -> None:
        """Makes a file durable; nothing of it is left when that fails."""
        fs, directory, name = self._data.fs, self._data.stages, stage_file.file_name(stage)

        def told(error: TopicsError | None) -> None:
            if error is not None:
                discard(fs, join(directory, name))
            ended(error)

        write = partial(write_whole, fs, directory, name, parts)
        self._pending.append(Work(write, told))
        self._go_on()

    def remove(self, stages: Sequence[StageId], ended: Ended) -> None:
        """Removes files for good; one that is not there is removed."""
        self._pending.append(Work(partial(self._unlink, list(stages)), ended))
        self._go_on()

    def read(
        self, stages: Sequence[StageId], ended: Callable[[list[bytes] | TopicsError], None]
    ) -> None:
        """Reads the records of stages, each checked as a whole."""
        fs, directory = self._data.fs, self._data.stages
        found: list[bytes] = []

        def read() -> None:
            found.extend(stage_file.read_body(fs, directory, stage) for stage in stages)

        def told(job: Job) -> None:
            error = job.error
            if error is None:
                ended(found)
            elif isinstance(error, TopicsError):
                ended(error)
            elif isinstance(error, OSError):
                ended(typed(error, "a stage can not be read; nothing was committed"))
            elif isinstance(error, MemoryError):
                ended(StorageError("no memory for the records of a commit; nothing was committed"))
            else:
                raise error

        self._reading.append((self._start(read), told))
        self.poll()

    # -- what is under way -------------------------------------------------------------------

    def poll(self) -> None:
        """Tells those whose call has ended, and begins the next one."""
        # Whoever is told may ask for more, and poll.
        while (ended := next((each for each in self._reading if each[0].done), None)) is not None:
            self._reading.remove(ended)
            job, told = ended
            told(job)
        if self._writing is not None and self._writing[0].done:
            (job, works), self._writing = self._writing, None
            self._told.extend((work, work.error or job.error) for work in works)
        while self._told:
            work, error = self._told.popleft()
            work.ended(None if error is None else _named(error))
        self._go_on()

    def finish(self) -> None:
        """Waits until everything that was asked for is done, and told."""
        while self.is_busy:
            self.poll()
            if self.is_busy:
                self._background.jobs.pause()

    def _go_on(self) -> None:
        if self._writing is None and self._pending:
            works, self._pending = self._pending, []
            self._writing = self._start(partial(self._run, works)), works
            if self._writing[0].done:
                self.poll()

    def _start(self, call: Callable[[], None]) -> Job:
        return self._background.jobs.start(call, self._notify)

    def _run(self, works: list[Work]) -> None:
        for work in works:
            work.run()
        self._data.fs.sync_dir(self._data.stages)

    def _unlink(self, stages: list[StageId]) -> None:
        fs = self._data.fs
        for stage in stages:
            path = join(self._data.stages, stage_file.file_name(stage))
            if fs.exists(path):
                fs.unlink(path)


def _named(error: BaseException) -> TopicsError:
    if isinstance(error, OSError):
        return typed(error, "a stage could not be written or removed")
    if isinstance(error, TopicsError):
        return error
    raise error
