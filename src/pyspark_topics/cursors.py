"""A stream's name on the server: where it began, how far it is, and that it runs only once.

Spark keeps the first place of a stream only with its first batch; until then a restart asks again,
and `latest` would be later. So the start is a cursor of its own, `<name>.start`, set if absent and
never moved; progress is the cursor `<name>`. A new checkpoint under an old name goes on from that
name's progress. Progress is told when the next batch is planned, which Spark does only once the one
before it is done, the last one of AvailableNow included.

A running stream leases its cursor from the server and renews the lease in a thread. A stream that
finds it leased waits for as long as a lease lasts, for its own dead predecessor, and then gives up.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from typing import Any

from pyspark_topics.errors import CursorInUse, Refused, TopicsSparkError
from pyspark_topics.http import Server, topic_path
from pyspark_topics.offsets import Place, Places
from pyspark_topics.options import SourceOptions

LEASE_MS = 6_000
RENEW_S = 1.5
_START = ".start"


class NamedCursor:
    """The cursors of one running stream, in all of its topics."""

    def __init__(self, server: Server, options: SourceOptions, name: str) -> None:
        self._server = server
        self._options = options
        self._name = name
        self._owner = uuid.uuid4().hex
        self._told: dict[str, tuple[str, int]] = {}
        self._leases = _Leases(options, name, self._owner)

    def begin(self, topic: str, start: Place) -> Place:
        """Where the stream begins in a topic: where it is, or where it once began, or `start`."""
        began = self._put(topic, _START, {
            "seq": start.seq, "epoch": start.epoch, "if_absent": True,
        })  # fmt: skip
        is_same = began["epoch"] == start.epoch
        at = self._put(topic, "", {
            "seq": began["seq"] if is_same else 0, "if_absent": True, **self._lease(),
        })  # fmt: skip
        self._keep(topic, at["epoch"], at["seq"])
        if at["created"] and not is_same:
            # Nothing was read yet, and what was to be read is another topic's.
            return Place(began["epoch"], began["seq"], began["seq"])
        if at["epoch"] != start.epoch:
            # Of the topic that it was in nothing beyond its place is known.
            return Place(at["epoch"], at["seq"], at["seq"])
        if at["seq"] == start.seq:
            return start
        # It goes on from a place that was fixed before: what is lost from there on is a loss.
        return replace(start, seq=at["seq"], known=())

    def go_on(self, places: Places) -> None:
        """Tells progress: everything up to these places is done. Leases what is not leased yet."""
        self._leases.check()
        for topic, place in places.items():
            if self._told.get(topic) == (place.epoch, place.seq):
                continue
            try:
                self._put(topic, "", {"seq": place.seq, "epoch": place.epoch, **self._lease()})
            except Refused as error:
                # Gone, created anew, or ahead by another checkpoint: what stands is no worse.
                if error.status != 404 and error.reason not in ("conflict", "cursor_regressed"):
                    raise
            self._keep(topic, place.epoch, place.seq)

    def rest(self) -> None:
        """Gives the leases back, so that the next one need not wait for their end."""
        self._leases.close()
        self._leases = _Leases(self._options, self._name, self._owner)
        self._told.clear()

    def _put(self, topic: str, suffix: str, body: dict[str, Any]) -> dict[str, Any]:
        path = topic_path(topic, "cursors", self._name + suffix)
        until = time.monotonic() + LEASE_MS / 1000 + RENEW_S
        while True:
            try:
                answer: dict[str, Any] = self._server.put(path, body)
                return answer
            except Refused as error:
                if error.reason != "cursor_leased":
                    raise
                if time.monotonic() > until:
                    raise CursorInUse(
                        f"cursor {self._name!r} of topic {topic!r} is in use by another running "
                        "query: stop it, or give this one a name of its own"
                    ) from None
            time.sleep(RENEW_S / 3)

    def _lease(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"owner": self._owner, "lease_ms": LEASE_MS}
        hold = {"max_bytes": self._options.hold_bytes, "max_age_ms": self._options.hold_ms}
        if any(hold.values()):
            asked["hold"] = {name: bound for name, bound in hold.items() if bound is not None}
        return asked

    def _keep(self, topic: str, epoch: str, seq: int) -> None:
        self._told[topic] = (epoch, seq)
        self._leases.add(topic)


class _Leases:
    """Renews leases in a thread of its own, over a connection of its own."""

    def __init__(self, options: SourceOptions, name: str, owner: str) -> None:
        # One try at a time: the next one comes by itself.
        self._access = replace(options.access, retries=0)
        self._name = name
        self._body = {"owner": owner, "lease_ms": LEASE_MS}
        self._topics: set[str] = set()
        self._taken = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, topic: str) -> None:
        self._topics.add(topic)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raises CursorInUse once another query has taken one of them."""
        if self._taken:
            raise CursorInUse(
                f"cursor {self._name!r} of topic {self._taken!r} was taken by another query"
            )

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _renew(self) -> None:
        with Server(self._access) as server:
            while not self._taken and not self._over.wait(RENEW_S):
                self._put_all(server, self._body)
            self._put_all(server, {**self._body, "lease_ms": 0})

    def _put_all(self, server: Server, body: dict[str, Any]) -> None:
        for topic in list(self._topics):
            try:
                server.put(topic_path(topic, "cursors", self._name), body)
            except Refused as error:
                if error.reason == "cursor_leased":
                    self._taken = topic
            except TopicsSparkError:
                # Away for now: the lease of a server that restarts is taken anew.
                pass
