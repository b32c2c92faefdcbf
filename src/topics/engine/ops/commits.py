"""Commits: the stages of a batch become records, for each topic all at once or not at all.

A commit is one frame for each topic. It has the seqs that the records get, names the stages that
they are in, and says whose batch it is: with it the batch is there, and known to be there. It is
synced before anybody sees anything of it, in every class but ephemeral. What it names is read and
checked before it is written; then the records are rendered, a piece at a time, and published with
the last one. So the loop never stops for it, however much it is, and readers see all or nothing.

A producer has one commit under way at a time; the next waits for it. Its batches only go up. The
same batch of the same query again is answered as it was the first time; a part of it that a crash
left out is committed then. Nothing is guessed: what can not be told apart is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from topics.configs import resolve_config
from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Ticket, unwritten
from topics.engine.ops import catalog, stages
from topics.engine.ops.commit_frames import CommitFrame, Part
from topics.engine.ops.growth import check_room
from topics.engine.state.producers import LastBatch, query_digest
from topics.engine.state.record import heads_bytes
from topics.engine.state.stages import Stage
from topics.engine.state.topic import Topic
from topics.errors import Conflicting, OutcomeUnknown, Poisoned, StageExpired, TopicsError
from topics.settings import MIB
from topics.types import Committed, CommittedTopic

# One of those that have more is under way at a time: its records are in memory. They stand in the
# same line, which has the name of no producer.
LARGE_BYTES = 64 * MIB
LARGE_LINE = ""

# Brings back a topic that recovery left for later.
Settle = Callable[[Topic], None]


def commit(
    core: Core,
    producer: str,
    batch: int,
    query: str,
    names: Sequence[str],
    ticket: Ticket[Committed],
    settle: Settle,
) -> None:
    """Begins a commit; the ticket ends in a Committed."""
    work = Commit(core, producer, batch, query, names, ticket, settle)
    core.preparing.beside.add(ticket)
    core.stages.line_up(producer, work.begin)


class Commit:
    """One commit, from the moment it is its producer's turn."""

    def __init__(
        self,
        core: Core,
        producer: str,
        batch: int,
        query: str,
        names: Sequence[str],
        ticket: Ticket[Committed],
        settle: Settle,
    ) -> None:
        self._core = core
        self._producer = producer
        self._batch = batch
        self._query = query_digest(query)
        # Each stage once, in the order in which they are named.
        self._names = list(dict.fromkeys(names))
        self._ticket = ticket
        self._settle = settle
        self._taken: dict[str, list[Stage]] = {}
        # What is there, by topic, and all topics that there will be something in.
        self._done: dict[str, LastBatch] = {}
        self._topics: tuple[str, ...] = ()
        self._frames_left = 0
        self._is_large = False
        self._error: TopicsError | None = None

    def begin(self) -> None:
        if self._ticket.done:
            # It was given up while it waited for its turn.
            self._end(None)
            return
        try:
            self._begin()
        except TopicsError as error:
            self._end(error)

    def _begin(self) -> None:
        core = self._core
        self._look_up()
        missing = [name for name in self._topics if name not in self._done]
        if self._done and not missing:
            self._resolve(is_repeated=True)
            return
        self._taken = self._choose(missing)
        if not self._taken:
            self._resolve(is_repeated=False)
            return
        self._topics = self._topics or tuple(self._taken)
        self._take(is_taken=True)
        held = [each for group in self._taken.values() for each in group]
        self._is_large = sum(each.size for each in held) > LARGE_BYTES
        read = partial(core.stage_files.read, [each.info.id for each in held], self._loaded)
        if self._is_large:
            core.stages.line_up(LARGE_LINE, read)
        else:
            read()

    # -- what there is -----------------------------------------------------------------------

    def _look_up(self) -> None:
        """Finds what of the batch is there. Raises Conflicting."""
        core, newest = self._core, -1
        for topic_id, last in core.stages.last_batches(self._producer):
            newest = max(newest, last.batch)
            if last.batch == self._batch:
                name = core.by_id[topic_id].name
                self._done[name] = last
                self._topics = last.topics or (name,)
        if self._batch < newest:
            raise Conflicting(
                f'producer "{self._producer}" has committed batch {newest}: batches only go up, '
                f"and {self._batch} can not be told from one that was there",
                producer=self._producer, batch=self._batch, last_batch=newest,
            )  # fmt: skip
        if any(last.query != self._query for last in self._done.values()):
            raise Conflicting(
                f'batch {self._batch} of producer "{self._producer}" was committed by another '
                "query; nothing was changed",
                producer=self._producer, batch=self._batch,
            )  # fmt: skip

    def _choose(self, missing: list[str]) -> dict[str, list[Stage]]:
        """The stages to be committed, by topic. Raises StageExpired, Conflicting."""
        chosen: dict[str, list[Stage]] = {}
        for name in self._names:
            found = self._find(name)
            if found is not None and (not self._done or found.info.topic in missing):
                chosen.setdefault(found.info.topic, []).append(found)
        for topic in missing:
            if topic not in chosen:
                raise StageExpired(
                    f'topic "{topic}" is a part of this batch that is not there: it was not '
                    "committed before the server ended, or the topic was deleted since. None of "
                    "the stages is for it; stage it again and repeat",
                    topic=topic,
                )
        for name in chosen:
            topic_now = self._core.by_name.get(name)
            if topic_now is not None and self._is_forgotten(topic_now):
                raise Conflicting(
                    f'topic "{name}" has had too many producers to remember them all, and '
                    f'"{self._producer}" may be one of them: whether this batch is there can not '
                    "be told. Use another producer.",
                    topic=name, producer=self._producer,
                )  # fmt: skip
        return chosen

    def _find(self, name: str) -> Stage | None:
        """A live stage of this batch; None for one that is committed in a batch that is there."""
        held = self._core.stages
        found = held.find(name)
        if found is None and self._done and held.is_spent(name):
            return None
        if found is None or found.deadline_s <= self._core.clock.monotonic_s():
            raise StageExpired(
                f'stage "{name[:100]}" has expired, was dropped or never was; nothing was '
                "committed. Stage its records again.",
                stage=name[:100],
            )
        if (found.info.producer, found.info.batch) != (self._producer, self._batch):
            raise Conflicting(
                f'stage "{name}" is of another producer or batch; nothing was committed',
                stage=name,
            )
        return found

    def _is_forgotten(self, topic: Topic) -> bool:
        held = self._core.stages
        known = any(topic_id == topic.id for topic_id, _ in held.last_batches(self._producer))
        return not known and held.may_be_forgotten(topic.id, self._producer)

    # -- what becomes of it ------------------------------------------------------------------

    def _loaded(self, found: list[bytes] | TopicsError) -> None:
        """All records are at hand: the rest can not wait for anything."""
        try:
            if isinstance(found, TopicsError):
                raise found
            # What is refused gives its seqs back: nothing in front of these may be, from here on.
            self._core.committer.flush()
            if self._core.committer.poison is not None:
                raise Poisoned("storage failed, and nothing was committed")
            made = self._put_together(iter(found))
        except TopicsError as error:
            self._end(error)
            return
        except Exception as error:
            self._end(unwritten(error))
            return
        self._frames_left = len(made)
        # From here on the log knows how it ends.
        self._core.preparing.beside.discard(self._ticket)
        self._hand_over(made)

    def _hand_over(self, made: list[CommitFrame]) -> None:
        failure: Exception | None = None
        for frame in made:
            try:
                frame.go()
            except Exception as error:
                # The others come to their end all the same.
                failure = error
        self._core.committer.flush()
        if failure is not None:
            raise failure

    def _put_together(self, bodies: Iterator[bytes]) -> list[CommitFrame]:
        """The frames of all topics. Whatever can fail does so here, with nothing changed."""
        core, made, created = self._core, [], []
        try:
            there = [name for name in self._taken if name in core.by_name]
            catalog.check_topic_count(core, len(self._taken) - len(there))
            for name in there:
                self._settle(core.by_name[name])
                core.expire(core.by_name[name])
            parts = {
                name: [Part(each, next(bodies)) for each in group]
                for name, group in self._taken.items()
            }
            # New topics last: a refusal may write what is staged, and there is no way back then.
            for name in sorted(parts, key=lambda name: name not in there):
                topic = core.by_name.get(name)
                if topic is None:
                    config = resolve_config(None, topic=name, type_now=None)
                    topic = catalog.create(core, name, config, None, is_open=False)[0]
                    created.append(topic)
                made.append(self._frame(topic, parts[name]))
        except Exception:
            for topic in created:
                catalog.uncreate(core, topic)
            raise
        return made

    def _frame(self, topic: Topic, parts: list[Part]) -> CommitFrame:
        """Raises Throttled, TopicFull or RecordTooLarge when there is no room for it."""
        core = self._core
        ts = max(core.clock.wall_ms(), topic.last_ts)
        count = sum(part.stage.info.count for part in parts)
        size = sum(part.stage.info.rest_bytes for part in parts)
        size += heads_bytes(topic.next_seq, count, ts)
        if core.settings.max_total_bytes or topic.config.discard == "reject":
            staged = sum(part.stage.size for part in parts)
            check_room(core, topic, count, size, counted=staged)
        topics = self._topics if len(self._topics) > 1 else ()
        done = LastBatch(self._batch, self._query, topic.epoch, topic.next_seq, count, topics)
        return CommitFrame(core, topic, self._producer, done, parts, size, ts, self._ended)

    def _ended(self, topic: Topic, done: LastBatch, error: TopicsError | None) -> None:
        """One of its frames has come to its end."""
        if error is None:
            self._done[topic.name] = done
        elif self._error is None or isinstance(error, OutcomeUnknown):
            self._error = error
        self._frames_left -= 1
        if self._frames_left:
            return
        if self._error is not None:
            self._end(self._error)
        else:
            self._core.stages.commits_total += 1
            self._resolve(is_repeated=False)

    def _resolve(self, *, is_repeated: bool) -> None:
        # Those of attempts that died, and of batches that can not come any more.
        stages.discard(self._core, self._core.stages.upto(self._producer, self._batch))
        topics = {name: shown(self._done[name]) for name in self._topics}
        self._end(None, Committed(is_repeated, topics))

    def _end(self, error: TopicsError | None, result: Committed | None = None) -> None:
        self._take(is_taken=False)
        core = self._core
        core.preparing.beside.discard(self._ticket)
        try:
            if self._ticket.done:
                return
            if result is not None:
                self._ticket.resolve(result)
            else:
                assert error is not None
                self._ticket.fail(error)
        finally:
            if self._is_large:
                core.stages.go_on(LARGE_LINE)
            core.stages.go_on(self._producer)

    def _take(self, *, is_taken: bool) -> None:
        for group in self._taken.values():
            for each in group:
                each.is_taken = is_taken


def shown(done: LastBatch) -> CommittedTopic:
    return CommittedTopic(done.first, done.first + done.count - 1, done.count)
