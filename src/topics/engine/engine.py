"""The engine: one directory, one owner, plain calls. No HTTP and no event loop needed.

    with Engine.open("./data") as engine:
        engine.append("orders", [{"data": {"n": 1}}])
        page = engine.diff("orders", from_seq=0)

All calls come from the thread that opened it; from another one they raise WrongThread and do
nothing. `submit_*` return a ticket at once and leave the writing to `flush`;
the others wait until the ticket has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from threading import get_ident
from typing import Any, Unpack

from topics.configs import ConfigFields, config_input, resolve_config
from topics.engine.backup_calls import BackupCalls
from topics.engine.bucket_calls import BucketCalls
from topics.engine.commit.ticket import Owner, Ticket
from topics.engine.ops import append, catalog, deletes, deleting, singles
from topics.engine.ops.told import TICKETS, Teller
from topics.engine.queue_calls import QueueCalls
from topics.engine.reader_calls import ReaderCalls
from topics.engine.reading import pages
from topics.engine.reading.pages import View
from topics.engine.routing import definitions
from topics.engine.serving import Serving
from topics.engine.stage_calls import StageCalls
from topics.engine.state.batch import Batch
from topics.engine.state.explaining import explain
from topics.engine.state.routers import Router
from topics.engine.state.tags import parse_match
from topics.engine.state.topic import Topic
from topics.engine.state.write_request import Request, check_bytes, decode_write, request_of
from topics.engine.upkeep.erasing import Rewrite
from topics.errors import Conflicting, InvalidRequest, TopicNotFound
from topics.settings import MIB
from topics.signatures import readable
from topics.types import (
    U64_MAX,
    Appended,
    ConfigInput,
    ConfigPatch,
    Deleted,
    ExplainedRange,
    Page,
    TopicConfig,
    TopicState,
    check_name,
    clamp,
    convert,
)

LIMIT_DEFAULT = 256
BATCH_BYTES_DEFAULT = 1 * MIB
BATCH_BYTES_MAX = 8 * MIB


@readable
class Engine(QueueCalls, ReaderCalls, StageCalls, BucketCalls, BackupCalls, Serving):
    """One data directory, open: every call there is, for the thread that opened it.

    `Engine.open(path)` makes one. Any other thread gets WrongThread: see docs/embedding.md for
    asyncio and web frameworks. What a program uses:

        topics    put_topic, patch_topic, state, list_topics, explain, delete_topic
        records   append, append_json, diff, range, seq_at, place_at, delete, rewrite
        readers   put_cursor, cursor, cursors, delete_cursor
        queues    claim, ack, nack, extend, queue_state, held_jobs
        routers   put_router, router, delete_router
        batches   stage, commit, drop_stages
        upkeep    poll, forward, maintain, checkpoint, sync, backup, scrub, close

    They raise what went wrong, with nothing changed, or OutcomeUnknown. After Poisoned only a new
    process can tell what is there. All else is for the server, which never waits: what `submit_*`
    return is a ticket, which ends in exactly one way. `topics.kv.embedded.open_bucket` opens the
    buckets of an engine.
    """

    # -- topics ------------------------------------------------------------------------------

    def put_topic(
        self,
        name: str,
        config: ConfigInput | Mapping[str, object] | None = None,
        **fields: Unpack[ConfigFields],
    ) -> tuple[TopicConfig, bool]:
        """Creates a topic or replaces its config; (config as it stands, whether it is new).

        Fields may be given by name, or as a mapping; what is in neither takes its default.
        """
        if fields:
            if isinstance(config, ConfigInput):
                raise InvalidRequest("give a ConfigInput or fields, not both")
            config = {**(config or {}), **fields}
        put = self.submit_put(name, config)
        self._wait(put.ticket)
        return put.topic.config, put.created

    def submit_put(self, name: str, config: catalog.Given) -> catalog.Put:
        """`put_topic`, begun."""
        self._check_writable()
        if check_name(name) in self.core.by_name:
            self._topic(name)
        return catalog.put(self.core, name, config)

    def patch_topic(self, name: str, **fields: Unpack[ConfigFields]) -> TopicConfig:
        """Changes these fields of a topic's config and leaves the rest; the config as it stands."""
        put = self.submit_patch(name, convert(fields, ConfigPatch, "config"))
        self._wait(put.ticket)
        return put.topic.config

    def submit_patch(self, name: str, given: ConfigPatch) -> catalog.Put:
        """`patch_topic`, begun."""
        self._check_writable()
        return catalog.patch(self.core, self._topic(check_name(name)), given)

    def delete_topic(self, name: str, *, if_empty: bool = False) -> bool:
        """Removes a topic and all its records for good; False when there was none."""
        deleted, ticket = self.submit_drop(name, if_empty=if_empty)
        self._wait(ticket)
        return deleted

    def submit_drop(self, name: str, *, if_empty: bool) -> tuple[bool, Ticket[None]]:
        """`delete_topic`, begun; whether there is such a topic."""
        self._check_writable()
        if check_name(name) in self.core.by_name:
            self._topic(name)
        return catalog.drop(self.core, name, if_empty=if_empty)

    def list_topics(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        """Names in byte order after `after`."""
        self._check_open()
        return self.names([prefix], after=after, limit=limit)

    def state(self, name: str, *, touch: bool = True, cursors: bool = True) -> TopicState:
        """How a topic stands: its seqs, counts, config and cursors. Raises TopicNotFound."""
        topic = self._topic(name)
        self.core.expire(topic)
        if touch:
            topic.note_read(self.core.clock.wall_ms())
        self.core.committer.flush()
        return catalog.state_of(self.core, topic, with_cursors=cursors)

    def rewrite(self, name: str) -> Rewrite:
        """Takes what the topic has lost so far off the disk, whoever else has files with it."""
        self._check_writable()
        self._recover_rest()
        ticket = self.submit_rewrite(name)
        with self.core.background.alone():
            while not ticket.done:
                self._guard(self.maintenance.drain)
                # A backup keeps the old bytes until it has ended.
                self.core.background.jobs.pause()
        return self._wait(ticket)

    def submit_rewrite(self, name: str) -> Ticket[Rewrite]:
        """`rewrite`, begun."""
        self._check_writable()
        ticket: Ticket[Rewrite] = Ticket()
        self.maintenance.eraser.ask(self._topic(name), ticket)
        return ticket

    # -- routers -----------------------------------------------------------------------------

    def put_router(self, name: str, router: definitions.Given) -> tuple[Router, bool]:
        """Creates or changes a router; (the router, whether it is new)."""
        entered, created, ticket = self.submit_router(name, router)
        self._wait(ticket)
        return entered, created

    def submit_router(
        self, name: str, router: definitions.Given
    ) -> tuple[Router, bool, Ticket[None]]:
        """`put_router`, begun; the router and whether it is new."""
        self._check_writable()
        asked = definitions.read_input(router)
        for topic in (asked.source, asked.dest):
            if topic in self.core.by_name:
                # Where it starts is judged by the head.
                self._topic(topic)
        return definitions.put(self.core, name, asked)

    def router(self, name: str) -> Router:
        """A router that is there. Raises RouterNotFound."""
        self._check_open()
        return self.core.routers.get(name)

    def delete_router(self, name: str) -> bool:
        """Stops forwarding; False when there was no such router. What was forwarded stays."""
        deleted, ticket = self.submit_unroute(name)
        self._wait(ticket)
        return deleted

    def submit_unroute(self, name: str) -> tuple[bool, Ticket[None]]:
        """`delete_router`, begun; whether there is such a router."""
        self._check_writable()
        return definitions.remove(self.core, name)

    # -- writing -----------------------------------------------------------------------------

    def append(
        self,
        name: str,
        records: Sequence[Mapping[str, Any]],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Appended:
        """Appends records; durable on return as the topic's class promises."""
        request = request_of(records, node=node, idempotency_key=idempotency_key, create=create)
        check_bytes(request, self.core.settings.max_body_bytes)
        request.config = None if config is None else config_input(config)
        return self._wait(self.submit_append(name, request))

    def append_json(self, name: str, body: bytes) -> Appended:
        """Appends the records of a JSON write body, data kept verbatim."""
        request = decode_write(body, self.core.settings)
        return self._wait(self.submit_append(name, request))

    def submit_append(self, name: str, request: Request) -> Ticket[Appended]:
        """`submit_write` with a ticket."""
        ticket: Ticket[Appended] = Ticket()
        self.submit_write(name, request, ticket, TICKETS)
        return ticket

    def submit_write(self, name: str, request: Request, owner: Owner, teller: Teller) -> None:
        """Checks and stages a write. Nothing has happened when it raises.

        Its owner is told by the teller, with others of the same frame, or by its own `fail`.
        """
        core, deferred = self.core, self._recovery.replay.deferred
        if self._is_closed or core.committer.poison is not None or get_ident() != self._thread:
            self._check_writable()
        topic = core.by_name.get(name)
        if topic is not None and len(request.records) == 1:
            if deferred and topic.id in deferred:
                self._finish_topic(topic.id)
            singles.append(core, topic, request, owner, teller)
            return
        batch = Batch(request.records, request.node, core.settings)
        created = topic is None
        if topic is None:
            topic = self._create_for(name, request)
        elif topic.id in deferred:
            self._finish_topic(topic.id)
        try:
            append.append(
                core, topic, batch, owner, teller, key=request.idempotency_key, created=created
            )
        except Exception:
            if created:
                catalog.uncreate(core, topic)
            raise

    def _create_for(self, name: str, request: Request) -> Topic:
        check_name(name)
        config = resolve_config(request.config, topic=name, type_now=None)
        wanted = config.auto_create if request.create is None else request.create
        if not wanted:
            raise TopicNotFound(
                f'topic "{name}" does not exist and this write may not create it', topic=name
            )
        return catalog.create(self.core, name, config, None)[0]

    def delete(self, name: str, *, before_seq: int | None = None, match: object = None) -> Deleted:
        """Removes existing records for good: below a seq, by tag, or both. Silent for readers."""
        ticket = self.submit_delete(name, before_seq=before_seq, match=match)
        return self._wait(ticket)

    def submit_delete(self, name: str, *, before_seq: object, match: object) -> Ticket[Deleted]:
        """Begins a delete; it is staged now, or, when it is a large one, by `maintain`."""
        self._check_writable()
        before = deletes.parse_before(before_seq)
        predicate = None if match is None else parse_match(match)
        if before is None and predicate is None:
            raise InvalidRequest("a delete needs before_seq or match or both")
        ticket: Ticket[Deleted] = Ticket()
        topic = self._topic(name)
        if topic.config.is_bucket:
            raise Conflicting(
                f'topic "{name}" is a bucket: delete its keys, and compaction removes its records',
                topic=name,
            )
        deleting.delete(self.core, topic, before, predicate, ticket)
        return ticket

    # -- reading -----------------------------------------------------------------------------

    def diff(
        self,
        name: str,
        *,
        from_seq: int = 0,
        limit: int = 0,
        node: str | Sequence[str] = (),
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
        epoch: int | None = None,
        bytes_max: int = 0,
        touch: bool = True,
    ) -> Page:
        """Records after a cursor, with the tombstone for what was lost; waits for cold reads."""
        return self._fetching(
            lambda: self.diff_now(
                name, from_seq=from_seq, limit=limit, node=node, include_tags=include_tags,
                include_meta=include_meta, include_data=include_data, epoch=epoch,
                bytes_max=bytes_max, touch=touch,
            )
        )  # fmt: skip

    def diff_now(
        self,
        name: str,
        *,
        from_seq: int = 0,
        limit: int = 0,
        node: str | Sequence[str] = (),
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
        epoch: int | None = None,
        bytes_max: int = 0,
        touch: bool = True,
    ) -> Page:
        """Like `diff`, but raises ColdMiss instead of waiting for the cold store."""
        if type(from_seq) is not int or not 0 <= from_seq <= U64_MAX:
            raise InvalidRequest("from_seq must be from 0 to 2^64 - 1")
        topic = self._topic(name)
        core = self.core
        if topic.config.ttl_ms or topic.holds:
            core.expire(topic)
            core.committer.flush()
        if touch:
            topic.note_read(core.clock.wall_ms())
        nodes = frozenset((node,) if isinstance(node, str) else node)
        if not topic.config.dedupe_node:
            nodes = frozenset()
        page = pages.page(
            topic, from_seq, epoch, View(nodes, include_tags, include_meta, include_data),
            limit=clamp(limit or LIMIT_DEFAULT, 1, core.settings.max_limit),
            bytes_max=clamp(bytes_max or BATCH_BYTES_DEFAULT, 1, BATCH_BYTES_MAX),
            load_now=core.segments.columns,
        )  # fmt: skip
        core.tally.read += page.count
        return page

    def explain(
        self, name: str, first: int = 1, last: int | None = None, *, ranges_max: int | None = None
    ) -> list[ExplainedRange]:
        """What became of every seq of [first, last]: live, or why it is gone."""
        topic = self._topic(name)
        self.core.expire(topic)
        self.core.committer.flush()
        ranges = explain(topic, first, topic.head if last is None else last)
        return list(islice(ranges, ranges_max))
