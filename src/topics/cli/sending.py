"""Lines of files as records: read, checked, sent in batches, counted.

What was sent is known at every moment: Ctrl-C while a batch is on its way takes effect after its
answer, so that the count that is told is true.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Literal

import msgspec
import typer

from topics.cli import exits, server
from topics.cli.exported import as_written
from topics.client.client import Client
from topics.client.request import encode
from topics.client.values import Appended
from topics.configs import ConfigFields
from topics.errors import InvalidRequest, TopicsError

Lines = Literal["data", "records", "text"]
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="Files to read; - or none: standard input."),
]
Records = Annotated[
    bool,
    typer.Option("--records", help="Each line is a whole record, or one of an export."),
]
Text = Annotated[bool, typer.Option("--text", help="Each line is text, and becomes a JSON string.")]
CHUNK_BYTES = 1024 * 1024
BATCH_LINES = 5_000
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_BLANK = b" \t\r"
# How a server names the record that it refuses.
_RECORD = re.compile(r"records\[(\d+)\]")


def lines_of(*, records: bool, text: bool) -> Lines:
    """What a line is, by its options."""
    if records and text:
        raise typer.BadParameter("--records and --text exclude each other")
    return "records" if records else "text" if text else "data"


class Sender:
    """Sends lines to one topic."""

    def __init__(
        self,
        client: Client,
        topic: str,
        lines: Lines,
        *,
        node: str | None = None,
        create: bool = True,
        config: ConfigFields | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._lines = lines
        given = {"node": node, "create": None if create else False, "config": config}
        fields = {name: value for name, value in given.items() if value is not None}
        # Behind the records: `,"node":…}`.
        self._rest = b"," + encode(fields)[1:] if fields else b"}"
        self.count = 0
        # Lines of an export that tell of a loss, and are no records.
        self.gaps = 0
        self.first: int | None = None
        self.last: int | None = None
        self._line_number = 0
        self._file = ""
        self._is_sending = self._is_interrupted = False

    def run(self, files: Sequence[str], *, as_json: bool) -> None:
        """Sends everything and says so; an error or Ctrl-C says how far it came."""
        try:
            with self._interruptible(), _progress(files) as progress:
                for name in files:
                    self._send_file(name, progress)
        except KeyboardInterrupt:
            server.tell(f"interrupted: {self.summary()}")
            raise typer.Exit(exits.INTERRUPTED) from None
        except (TopicsError, OSError):
            server.tell(self.summary())
            raise
        server.tell(self.summary())
        if as_json:
            server.write_json(
                {"topic": self._topic, "count": self.count, "first_seq": self.first,
                 "last_seq": self.last}
            )  # fmt: skip

    def summary(self) -> str:
        place = "" if self.first is None else f" (seq {self.first} to {self.last})"
        gaps = f"; {server.counted(self.gaps, 'gap')} left out" if self.gaps else ""
        return f"{server.counted(self.count, 'record')} sent to {self._topic}{place}{gaps}"

    def _send_file(self, name: str, progress: Callable[[int], None] | None) -> None:
        self._file, self._line_number = "standard input" if name == "-" else name, 0
        source = sys.stdin.fileno() if name == "-" else os.open(name, os.O_RDONLY)
        try:
            for lines in _batches(source):
                self._send(lines)
                if progress is not None:
                    progress(os.lseek(source, 0, os.SEEK_CUR))
        except IsADirectoryError as error:
            raise IsADirectoryError(error.errno, error.strerror, name) from None
        finally:
            if name != "-":
                os.close(source)

    def _send(self, lines: list[bytes]) -> None:
        text = self._body(lines)
        if text is None:
            self._line_number += len(lines)
            return
        self._is_sending = True
        try:
            self._note(self._client.append_json(self._topic, text))
        except InvalidRequest as error:
            self._find_fault(lines)
            raise self._placed(error, lines) from None
        finally:
            self._is_sending = False
        self._line_number += len(lines)
        if self._is_interrupted:
            raise KeyboardInterrupt

    def _note(self, answer: Appended) -> None:
        self.count += answer.count
        self.first = answer.first_seq if self.first is None else self.first
        self.last = answer.last_seq

    def _body(self, lines: list[bytes]) -> bytes | None:
        """The write body of these lines; None when all of them are empty."""
        if self._lines == "text":
            kept = [encode(self._text(offset, line)) for offset, line in enumerate(lines, 1)]
        else:
            kept = [stripped for line in lines if (stripped := line.strip(_BLANK))]
            if not _are_json(kept):
                self._find_fault(lines)
        if self._lines == "records":
            records = [record for line in kept if (record := as_written(line)) is not None]
            self.gaps += len(kept) - len(records)
            kept = records
        if not kept:
            return None
        if self._lines == "records":
            return b'{"records":[%b]%b' % (b",".join(kept), self._rest)
        return b'{"records":[{"data":%b}]%b' % (b'},{"data":'.join(kept), self._rest)

    def _text(self, offset: int, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            words = f"{self._place(offset)} is not UTF-8, which is what a string is made of here"
            raise InvalidRequest(f"{words}; convert it first, for example with iconv") from None

    def _find_fault(self, lines: list[bytes]) -> None:
        """Raises InvalidRequest naming the first line that is no JSON, if there is one."""
        if self._lines == "text":
            return
        hint = "; --text sends lines as strings" if self._lines == "data" else ""
        for offset, line in enumerate(lines, 1):
            kept = line.strip(_BLANK)
            if kept and (fault := server.json_fault(kept)) is not None:
                raise InvalidRequest(f"{self._place(offset)} is not JSON ({fault}){hint}")

    def _placed(self, error: InvalidRequest, lines: list[bytes]) -> InvalidRequest:
        """What the server said of one record, with the line that it was."""
        named = _RECORD.search(error.message)
        if named is None:
            return error
        sent = [
            offset for offset, line in enumerate(lines, 1)
            if self._lines == "text" or ((kept := line.strip(_BLANK)) and as_written(kept))
        ]  # fmt: skip
        words = f"{self._place(sent[int(named[1])])}: {error.message}"
        return type(error)(words, **error.detail)

    def _place(self, offset: int) -> str:
        return f"line {self._line_number + offset} of {self._file}"

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        def interrupt(_: int, __: FrameType | None) -> None:
            self._is_interrupted = True
            if not self._is_sending:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(files: Sequence[str]) -> Iterator[Callable[[int], None] | None]:
    """Moves a bar to a place in the file that is read; None where nobody would see it."""
    if not sys.stderr.isatty() or not all(os.path.isfile(name) for name in files):
        yield None
        return
    # Not at the top: most who append are scripts.
    from topics.cli.directory import progress_bar

    sizes = [os.path.getsize(name) for name in files]
    done = at = 0
    with progress_bar("sending") as move:

        def moved(place: int) -> None:
            nonlocal done, at
            if place < at:
                # The next file.
                done += at
            at = place
            if move is not None:
                move(done + at, sum(sizes))

        yield moved


def _batches(source: int) -> Iterator[list[bytes]]:
    """Whole lines, as many as are there; a line that has no end yet waits for it."""
    rest = b""
    while chunk := os.read(source, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), BATCH_LINES):
            yield lines[start : start + BATCH_LINES]
    if rest:
        yield [rest]


def _are_json(lines: list[bytes]) -> bool:
    """Whether each line is one JSON value. Looked at together; each must be what it was alone."""
    try:
        found = _LIST.decode(b"[" + b",".join(lines) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return list(map(bytes, found)) == lines
