"""Every option of the source and the sink: its name, its default, what it means.

The tables below are the only list: the documentation is made of them, and a name that is nearly one
of them is refused as a slip. Values are read before anything is asked of the server, and one that
can not be read is an error that names its option. The token is in no error and in no repr.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyspark_topics.errors import BadOption

EARLIEST, LATEST = "earliest", "latest"
RECORD, DROP = "record", "drop"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
SEQ_MAX = 2**63 - 2
NUMBER_MAX = 2**63 - 1

# Ten pauses that double from half a second to five come to 37.5 s.
RETRIES, RETRY_INTERVAL_MS, RETRY_INTERVAL_MS_MAX, TIMEOUT_MS = 10, 500, 5_000, 120_000
BATCH_BYTES = 1 << 20

BOTH, BATCH, STREAM = "batch, stream", "batch", "stream"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


@dataclass(frozen=True)
class Option:
    """One line of a table."""

    name: str
    default: str
    reads: str
    meaning: str


_SERVER = (
    Option("url", "required", BOTH, "the server, such as `http://127.0.0.1:4000`"),
    Option("token", "none", BOTH, "API key; it is in no plan, log or error"),
    Option("fetch.numRetries", str(RETRIES), BOTH,
           "how often a call is tried again when the server is away or busy; the defaults come to "
           "37.5 s of pauses. 401 and 403 are never tried again"),
    Option("fetch.retryIntervalMs", str(RETRY_INTERVAL_MS), BOTH,
           "the first pause between tries; each further one is twice as long, up to "
           f"{RETRY_INTERVAL_MS_MAX} ms"),
    Option("fetch.timeoutMs", str(TIMEOUT_MS), BOTH, "how long one answer may take"),
)  # fmt: skip

SOURCE = (
    *_SERVER[:2],
    Option("subscribe", "one of the two", BOTH, "names of topics, with commas between them"),
    Option("subscribePattern", "one of the two", BOTH,
           "a regular expression for whole names; new topics join a running stream"),
    Option("startingOffsets", EARLIEST, BOTH,
           "`earliest` (seq 1), `latest` (streams, with `cursor`), or JSON `{\"topic\": seq}` with "
           "the first seq read"),
    Option("startingTimestamp", "none", BOTH,
           "milliseconds since 1970: from the first record at or after it; wins over "
           "`startingOffsets`"),
    Option("endingOffsets", LATEST, BATCH,
           "`latest`, or JSON `{\"topic\": seq}` with the first seq not read"),
    Option("endingTimestamp", "none", BATCH,
           "milliseconds since 1970: up to the first record at or after it, which is not read; "
           "wins over `endingOffsets`"),
    Option("failOnDataLoss", "true", BOTH,
           "fail with `TOPIC_DATA_LOSS` on a gap, another epoch or a topic that is gone, met after "
           "the first position was fixed; with `false` they are rows, and a stream waits for a "
           "topic that is gone"),
    Option("gapMode", RECORD, BOTH,
           "with `failOnDataLoss=false`: `record` gives a row for each gap, `drop` none"),
    Option("cursor", "none", STREAM,
           "a durable name on the server: it fixes the start when it is first used, and shows "
           "progress and lag; one running query at a time"),
    Option("cursorHoldBytes", "none", STREAM,
           "keep up to so many bytes from cap and TTL until the cursor has passed them; needs the "
           "scope admin"),
    Option("cursorHoldMs", "none", STREAM,
           "keep records up to this age from cap and TTL until the cursor has passed them; needs "
           "the scope admin"),
    Option("maxOffsetsPerTrigger", "none", STREAM,
           "records in a batch, over all topics; a gap counts as one"),
    Option("maxBytesPerTrigger", "none", STREAM,
           "bytes of `data` and `meta` in a batch, over all topics; one record may cross it"),
    Option("minPartitions", "1", BOTH, "split ranges until there are at least so many"),
    Option("maxRecordsPerPartition", "none", BOTH, "split ranges that have more records"),
    Option("includeMeta", "true", BOTH, "with `false` the column `meta` is null"),
    Option("includeTags", "true", BOTH, "with `false` the column `tag` is null"),
    Option("pushdown", "false", BATCH,
           "use filters on `seq`, `ts` and `tag` to read less; needs "
           "`spark.sql.python.filterPushdown.enabled`"),
    *_SERVER[2:],
)  # fmt: skip

SINK = (
    *_SERVER[:2],
    Option("topic", "none", BOTH, "where every row goes; without it a column `topic` says so"),
    Option("delivery", EXACTLY_ONCE, BOTH,
           "`exactly-once` (rows are staged and seen at once when the batch is committed) or "
           "`at-least-once` (rows are appended as they come)"),
    Option("producerId", "id of the query", BOTH,
           "who a batch is from, for telling a repeat; a batch known from another query is an "
           "error"),
    Option("batchBytes", str(BATCH_BYTES), BOTH, "how large a request becomes, about"),
    *_SERVER[2:],
)  # fmt: skip

# What Spark itself puts among the options.
_SPARKS = ("path", "checkpointlocation", "queryname", "mergeschema")


@dataclass(frozen=True)
class Access:
    """How the server is reached. Pickled to executors, so the token is in it, and in no repr."""

    url: str
    token: str = field(default="", repr=False)
    retries: int = RETRIES
    retry_interval_ms: int = RETRY_INTERVAL_MS
    timeout_ms: int = TIMEOUT_MS


@dataclass(frozen=True)
class SourceOptions:
    """What a read asks for. A start or end is a word or seqs by topic; a time wins over it."""

    access: Access
    topics: tuple[str, ...]
    pattern: str | None
    start: str | dict[str, int]
    start_ts: int | None
    end: str | dict[str, int]
    end_ts: int | None
    fail_on_data_loss: bool
    gap_mode: str
    cursor: str | None
    hold_bytes: int | None
    hold_ms: int | None
    records_max: int | None
    bytes_max: int | None
    partitions_min: int
    partition_records_max: int | None
    include_meta: bool
    include_tags: bool
    pushdown: bool


@dataclass(frozen=True)
class SinkOptions:
    """What a write asks for."""

    access: Access
    topic: str | None
    delivery: str
    producer: str | None
    batch_bytes: int


class _Given:
    """The options as they were given, read one at a time."""

    def __init__(self, given: Mapping[str, str], table: tuple[Option, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        known = {option.name.lower(): option.name for option in table}
        for name in self._given:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if close and name not in known and name not in _SPARKS:
                raise BadOption(name, f"there is none of this name; is {known[close[0]]} meant?")

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def word(self, name: str, default: str, *allowed: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in allowed:
            raise BadOption(name, f"{value!r} is none of {', '.join(allowed)}")
        return value.lower()

    def flag(self, name: str, default: bool) -> bool:
        return self.word(name, str(default).lower(), "true", "false") == "true"

    def number(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if re.fullmatch(r"[0-9]{1,19}", value.strip()) is None:
            raise BadOption(name, f"{value!r} is not a whole number")
        if not least <= int(value) <= NUMBER_MAX:
            raise BadOption(name, f"{value!r} is not from {least} to 2^63 - 1")
        return int(value)

    def seqs(self, name: str, default: str, *words: str) -> str | dict[str, int]:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() in words:
            return value.strip().lower()
        try:
            read = json.loads(value)
        except ValueError:
            read = None
        if not isinstance(read, dict):
            wanted = " or ".join(words)
            raise BadOption(name, f'{value!r} is not {wanted}, nor JSON like {{"topic": 1}}')
        for topic, seq in read.items():
            if type(seq) is not int or not 0 <= seq <= SEQ_MAX:
                raise BadOption(name, f"the seq of {topic!r} is {seq!r}, not a number from 0")
        return read

    def access(self) -> Access:
        return Access(
            url=self._url(), token=self._token(),
            retries=self.number("fetch.numRetries", RETRIES, 0) or 0,
            retry_interval_ms=self.number("fetch.retryIntervalMs", RETRY_INTERVAL_MS)
            or RETRY_INTERVAL_MS,
            timeout_ms=self.number("fetch.timeoutMs", TIMEOUT_MS) or TIMEOUT_MS,
        )  # fmt: skip

    def _url(self) -> str:
        value = self.text("url")
        if value is None:
            raise BadOption("url", "it is required: the server's address")
        try:
            parts = urlsplit(value.strip())
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            raise BadOption("url", "it is no address of the form http://host:port")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise BadOption("url", "no user, query or fragment belongs there; a key is `token`")
        return value.strip().rstrip("/")

    def _token(self) -> str:
        value = self.text("token") or ""
        # http.client would put what it can not send into the text of its error.
        if not all("!" <= letter <= "~" for letter in value):
            raise BadOption("token", "it holds characters that no API key has")
        return value


def source_options(options: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Reads the options of a read. Raises BadOption."""
    given = _Given(options, SOURCE)
    read = SourceOptions(
        access=given.access(),
        topics=_topics(given),
        pattern=_pattern(given),
        start=given.seqs("startingOffsets", EARLIEST, EARLIEST, LATEST),
        start_ts=given.number("startingTimestamp", least=0),
        end=given.seqs("endingOffsets", LATEST, LATEST),
        end_ts=given.number("endingTimestamp", least=0),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        gap_mode=given.word("gapMode", RECORD, RECORD, DROP),
        cursor=given.text("cursor"),
        hold_bytes=given.number("cursorHoldBytes"),
        hold_ms=given.number("cursorHoldMs"),
        records_max=given.number("maxOffsetsPerTrigger"),
        bytes_max=given.number("maxBytesPerTrigger"),
        partitions_min=given.number("minPartitions", 1) or 1,
        partition_records_max=given.number("maxRecordsPerPartition"),
        include_meta=given.flag("includeMeta", True),
        include_tags=given.flag("includeTags", True),
        pushdown=given.flag("pushdown", False),
    )
    _check_together(read, given, is_stream=is_stream)
    return read


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Reads the options of a write. Raises BadOption."""
    given = _Given(options, SINK)
    topic, producer = given.text("topic"), given.text("producerId")
    if topic is not None and _NAME.fullmatch(topic) is None:
        raise BadOption("topic", f"{topic!r} is no name of a topic")
    if producer is not None and not 1 <= len(producer.encode()) <= 256:
        raise BadOption("producerId", "it has 1 to 256 bytes")
    return SinkOptions(
        access=given.access(), topic=topic, producer=producer,
        delivery=given.word("delivery", EXACTLY_ONCE, EXACTLY_ONCE, AT_LEAST_ONCE),
        batch_bytes=given.number("batchBytes", BATCH_BYTES) or BATCH_BYTES,
    )  # fmt: skip


def _topics(given: _Given) -> tuple[str, ...]:
    listed = given.text("subscribe")
    if (listed is None) == (given.text("subscribePattern") is None):
        raise BadOption("subscribe", "give it or subscribePattern: one of the two")
    if listed is None:
        return ()
    names = [name.strip() for name in listed.split(",")]
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise BadOption("subscribe", f"{name!r} is no name of a topic")
    return tuple(sorted(set(names)))


def _pattern(given: _Given) -> str | None:
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadOption("subscribePattern", f"{pattern!r}: {error}") from None
    return pattern


def _check_together(read: SourceOptions, given: _Given, *, is_stream: bool) -> None:
    """What each option alone can not say."""
    other = BATCH if is_stream else STREAM
    for option in SOURCE:
        if option.reads == other and given.text(option.name) is not None:
            raise BadOption(option.name, f"it is for a {other} read only")
    if read.start == LATEST and read.start_ts is None:
        if not is_stream:
            raise BadOption("startingOffsets", "latest is no start of a batch read")
        if read.cursor is None:
            raise BadOption(
                "startingOffsets", "latest needs the option cursor: Spark does not keep where a "
                "stream began until its first batch is done, and a restart would begin later",
            )  # fmt: skip
    if read.cursor is None and (read.hold_bytes or read.hold_ms):
        name = "cursorHoldBytes" if read.hold_bytes else "cursorHoldMs"
        raise BadOption(name, "a hold needs the option cursor")
    if read.cursor is not None and _NAME.fullmatch(read.cursor + ".start") is None:
        raise BadOption("cursor", f"{read.cursor!r} is no name of a cursor")
    for name, seqs in (("startingOffsets", read.start), ("endingOffsets", read.end)):
        if isinstance(seqs, dict):
            _check_seqs(name, seqs, read)


def _check_seqs(name: str, seqs: dict[str, int], read: SourceOptions) -> None:
    for topic in seqs:
        matches = read.pattern is not None and re.fullmatch(read.pattern, topic) is not None
        if not matches and topic not in read.topics:
            raise BadOption(name, f"{topic!r} is not subscribed")
    missing = [topic for topic in read.topics if topic not in seqs]
    if missing:
        raise BadOption(name, f"it says nothing about {missing[0]!r}, which is subscribed")
