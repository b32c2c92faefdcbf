"""Calls on topics and their records: create, append, delete, explain."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any, Literal, Unpack

from topics.client import values
from topics.client.request import Request, body, encode, path, reading
from topics.client.values import Match, RecordFields
from topics.configs import ConfigFields
from topics.errors import InvalidRequest

_PUT = reading(values.TopicPut)
_STATE = reading(values.TopicState)
_PAGE = reading(values.TopicPage)
_DROPPED = reading(values.TopicDeleted)
_APPENDED = reading(values.Appended)
_DELETED = reading(values.Deleted)
_REWRITTEN = reading(values.TopicRewritten)
_BACKUP = reading(values.BackupState)
_EXPLAINED = reading(values.Explained)
KEY_BITS = 128
# Asking the system for each key would cost as much as all else that is done for a call. It is asked
# again after a fork: two processes with the same keys would take each other for repeats.
_CHANCE = random.Random()
os.register_at_fork(after_in_child=_CHANCE.seed)
# How long a rewrite is waited for: it may have gigabytes to go through.
REWRITE_S = 3600.0


def create_topic(topic: str, **config: Unpack[ConfigFields]) -> Request[values.TopicPut]:
    """Creates a topic, or gives an existing one exactly this config: what is left out is default.

    Raises Incompatible where `type` would change.
    """
    return Request("PUT", path("topics", topic), _PUT, encode(config), is_write=True)


def change_topic(topic: str, **config: Unpack[ConfigFields]) -> Request[values.TopicPut]:
    """Changes these fields of a topic's config and leaves the rest. Raises TopicNotFound."""
    return Request("PATCH", path("topics", topic), _PUT, encode(config), is_write=True)


def topic(topic: str, *, touch: bool = True) -> Request[values.TopicState]:
    """The state of a topic: its seqs, size, config, cursors, and the counters of a queue.

    `touch=False` does not count as reading it. Raises TopicNotFound.
    """
    return Request("GET", path("topics", topic, touch=None if touch else False), _STATE)


def topics(
    *,
    prefix: str = "",
    page_size: int = 1000,
    cursor: str | None = None,
    sort: Literal["name", "bytes", "count", "lag"] | None = None,
) -> Request[values.TopicPage]:
    """One page of all topics; pass `next_cursor` as `cursor` for the next, until it is None.

    Sorted by name, or the largest first.
    """
    query = {"prefix": prefix or None, "page_size": page_size, "cursor": cursor, "sort": sort}
    return Request("GET", path("topics", **query), _PAGE)


def delete_topic(topic: str, *, if_empty: bool = False) -> Request[values.TopicDeleted]:
    """Removes a topic with its records and routers for good. No error when there is none.

    It is not repeated when its answer is lost: somebody may have made a new topic of that name.
    """
    return Request(
        "DELETE", path("topics", topic, if_empty=if_empty or None), _DROPPED,
        is_write=True, is_repeatable=False,
    )  # fmt: skip


def append(
    topic: str,
    records: Sequence[RecordFields],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: ConfigFields | None = None,
    disable_backpressure: bool | None = None,
) -> Request[values.Appended]:
    """Appends records with consecutive seqs, all or none; durable as the topic's class promises.

    Each call has an idempotency key, made here unless given, so that a retry never writes twice. An
    empty one means none: then a lost answer is OutcomeUnknown. `create=False` raises TopicNotFound
    instead of making the topic; `config` is for a topic that this call makes.
    """
    text = body(
        records=records, node=node, create=create, config=config,
        disable_backpressure=disable_backpressure,
    )  # fmt: skip
    return append_json(topic, text, idempotency_key=idempotency_key)


def append_json(
    topic: str, text: bytes, *, idempotency_key: str | None = None
) -> Request[values.Appended]:
    """Like `append`, with the JSON body of a write as it is: `{"records": [{"data": …}, …], …}`."""
    if idempotency_key is None:
        key = f"{_CHANCE.getrandbits(KEY_BITS):032x}"
    else:
        key = idempotency_key
        if not key.isprintable() or key != key.strip():
            # It travels in a header, which could not hold it.
            raise InvalidRequest(f"an idempotency key is printable, unlike {key!r}")
    return Request(
        "POST", path("topics", topic, return_seqs=False), _APPENDED, text,
        headers={"Idempotency-Key": key} if key else None,
        is_write=True, is_repeatable=bool(key),
    )  # fmt: skip


def delete(
    topic: str, *, before_seq: int | None = None, match: Match | None = None
) -> Request[values.Deleted]:
    """Removes existing records for good: below a seq, by tag, or both. Silent for readers.

    Without `before_seq` a lost answer is OutcomeUnknown: to repeat it could take records that were
    written since.
    """
    return Request(
        "POST", path("topics", topic, "delete"), _DELETED, body(before_seq=before_seq, match=match),
        is_write=True, is_repeatable=before_seq is not None,
    )  # fmt: skip


def rewrite(topic: str) -> Request[values.TopicRewritten]:
    """Takes what the topic has lost so far off the disk and out of the cold store, now.

    When it returns, no file holds a byte of what was deleted, evicted or expired before the call.
    """
    return Request(
        "POST", path("topics", topic, "rewrite"), _REWRITTEN, is_write=True, wait_s=REWRITE_S
    )  # fmt: skip


def explain(
    topic: str, first: int | None = None, last: int | None = None
) -> Request[values.Explained]:
    """What became of every seq from `first` to `last`: live, or why it is gone."""
    query = {"from": first, "to": last}
    return Request("GET", path("topics", topic, "explain", **query), _EXPLAINED)


# -- routers ---------------------------------------------------------------------------------------

_ROUTER_PUT = reading(values.RouterPut)
_ROUTER = reading(values.RouterState)
_ROUTERS = reading(values.RouterPage)
_ROUTER_DELETED = reading(values.RouterDeleted)


def create_router(
    router: str,
    *,
    source: str,
    dest: str,
    preserve_node: bool | None = None,
    preserve_tag: bool | None = None,
    create_dest: bool | None = None,
    filter: Match | None = None,
    allow_cycle: bool | None = None,
    guarantee: Literal["at_least_once", "exactly_once"] | None = None,
    from_seq: int | None = None,
) -> Request[values.RouterPut]:
    """Copies what is appended to `source` into `dest` from now on, or changes how it is done."""
    text = body(
        source=source, dest=dest, preserve_node=preserve_node, preserve_tag=preserve_tag,
        create_dest=create_dest, filter=filter, allow_cycle=allow_cycle, guarantee=guarantee,
        from_seq=from_seq,
    )  # fmt: skip
    return Request("PUT", path("routers", router), _ROUTER_PUT, text, is_write=True)


def router(router: str) -> Request[values.RouterState]:
    """A router and how far it is. Raises RouterNotFound."""
    return Request("GET", path("routers", router), _ROUTER)


def routers(
    *,
    prefix: str = "",
    source: str | None = None,
    dest: str | None = None,
    page_size: int = 1000,
    cursor: str | None = None,
) -> Request[values.RouterPage]:
    """One page of all routers; pass `next_cursor` as `cursor` for the next, until it is None."""
    query = {
        "prefix": prefix or None, "source": source, "dest": dest, "page_size": page_size,
        "cursor": cursor,
    }  # fmt: skip
    return Request("GET", path("routers", **query), _ROUTERS)


def delete_router(router: str) -> Request[values.RouterDeleted]:
    """Stops a router; copies stay. No error when there is none."""
    return Request("DELETE", path("routers", router), _ROUTER_DELETED, is_write=True)


# -- the server ------------------------------------------------------------------------------------

_HEALTH = reading(values.Health)
_READY = reading(values.Ready)
_CONNECTIONS = reading(values.ConnectionPage)
_ANY = reading(dict[str, Any])


def health() -> Request[values.Health]:
    """Whether the process answers, and its version."""
    return Request("GET", path("health"), _HEALTH)


def ready() -> Request[values.Ready]:
    """Whether the log is open. Raises NotReady or Closed, after the retries."""
    return Request("GET", path("ready"), _READY)


def connections(
    *, page_size: int = 1000, cursor: str | None = None
) -> Request[values.ConnectionPage]:
    """Who is connected for long: streams, sockets, waiting reads and workers."""
    return Request("GET", path("connections", page_size=page_size, cursor=cursor), _CONNECTIONS)


def begin_backup(dest: str) -> Request[values.BackupState]:
    """Begins a backup to a directory of the server or to a bucket; Conflicting while one runs."""
    return Request("POST", path("backup"), _BACKUP, body(dest=dest), is_write=True)


def backup() -> Request[values.BackupState]:
    """The backup that runs, or the last one since the server's start; NotFound before that."""
    return Request("GET", path("backup"), _BACKUP)


def metrics() -> Request[dict[str, Any]]:
    """The metrics as JSON."""
    return Request("GET", path("metrics"), _ANY, headers={"Accept": "application/json"})


def metrics_text() -> Request[str]:
    """The metrics as Prometheus reads them."""
    return Request("GET", path("metrics"), bytes.decode, headers={"Accept": "text/plain"})


def openapi() -> Request[dict[str, Any]]:
    """The document that describes the whole API."""
    return Request("GET", path("openapi.json"), _ANY)
