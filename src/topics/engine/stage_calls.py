"""The calls of producers that write in batches: stage, commit, drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topics.engine.commit.ticket import Ticket
from topics.engine.lifecycle import Lifecycle
from topics.engine.ops import commits, stages
from topics.engine.state.stage_request import (
    StageRequest,
    check_batch,
    check_stages,
    check_word,
    stage_request_of,
)
from topics.engine.state.topic import Topic
from topics.errors import InvalidRequest
from topics.types import Committed, Staged


class StageCalls(Lifecycle):
    """A mixin of Engine."""

    def stage(
        self,
        topic: str,
        records: Sequence[Mapping[str, Any]],
        *,
        producer: str,
        batch: int,
        part: int | str = 0,
        attempt: int | str = 0,
    ) -> Staged:
        """Hands in records for a batch: durable on return, and seen by nobody before its commit."""
        request = stage_request_of(
            records, self.core.settings, topic=topic, producer=producer, batch=batch, part=part,
            attempt=attempt,
        )  # fmt: skip
        return self._wait(self.submit_stage(request))

    def submit_stage(self, request: StageRequest) -> Ticket[Staged]:
        """`stage`, begun."""
        self._check_writable()
        ticket: Ticket[Staged] = Ticket()
        stages.stage(self.core, request, ticket)
        return ticket

    def commit(self, producer: str, batch: int, *, query: str, stages: Sequence[str]) -> Committed:
        """Publishes stages, for each topic all at once; durable on return.

        The same batch of the same query again is answered as it was. Raises Conflicting for
        another query, or a batch before the last one; StageExpired with nothing changed.
        """
        return self._wait(self.submit_commit(producer, batch, query, stages))

    def submit_commit(
        self, producer: str, batch: int, query: str, names: Sequence[str]
    ) -> Ticket[Committed]:
        """`commit`, begun."""
        self._check_writable()
        check_word(producer, "producer")
        check_batch(batch)
        check_word(query, "query")
        check_stages(names)
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise InvalidRequest("stages must be a list of ids")
        ticket: Ticket[Committed] = Ticket()
        commits.commit(self.core, producer, batch, query, names, ticket, self._settle)
        return ticket

    def drop_stages(self, producer: str, batch: int) -> int:
        """Drops the stages of a batch that were not committed, for good; how many."""
        return self._wait(self.submit_drop_stages(producer, batch))

    def submit_drop_stages(self, producer: str, batch: int) -> Ticket[int]:
        """`drop_stages`, begun."""
        self._check_writable()
        ticket: Ticket[int] = Ticket()
        check_word(producer, "producer")
        stages.drop(self.core, producer, check_batch(batch), ticket)
        return ticket

    def topics_of_stages(self, names: Sequence[str]) -> list[str]:
        """The topics that stages are for, of those that are there. Raises BatchTooLarge."""
        self._check_thread()
        check_stages(names)
        found = [self.core.stages.find(name) for name in names]
        return list(dict.fromkeys(each.info.topic for each in found if each is not None))

    def topics_of_batch(self, producer: str, batch: int) -> list[str]:
        """The topics that a batch has stages for, or was committed to."""
        self._check_thread()
        held = self.core.stages
        staged = [each.info.topic for each in held.of(producer, batch)]
        last = [
            self.core.by_id[topic_id].name
            for topic_id, done in held.last_batches(producer)
            if done.batch == batch
        ]
        return list(dict.fromkeys([*staged, *last]))

    def _settle(self, topic: Topic) -> None:
        if topic.id in self._recovery.replay.deferred:
            self._finish_topic(topic.id)
