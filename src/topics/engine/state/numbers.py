"""Numbers that are given once and never again, whatever a crash or a failed start leaves behind."""

from __future__ import annotations

# Leases that one generation can give a number to.
LEASE_BITS = 40


class Numbers:
    """The next id of a topic, epoch, segment and lease, and the newest snapshot's number."""

    def __init__(self) -> None:
        self.next_topic_id = 1
        # Ids from here on were given after the snapshot that recovery started from.
        self.first_logged_id = 1
        self.next_epoch = 1
        self.next_segment = 1
        # The number of the next lease, of all queues together; different in every generation.
        self.next_lease = 0
        self.snapshot = 0

    def begin_from(self, snapshot: int, *, next_topic_id: int, next_epoch: int) -> None:
        """What a snapshot says, which is read before anything else."""
        self.snapshot = snapshot
        self.next_topic_id = self.first_logged_id = next_topic_id
        self.next_epoch = next_epoch

    def begin_generation(self, generation: int) -> None:
        self.next_lease = generation << LEASE_BITS

    def pass_snapshot(self, number: int) -> None:
        self.snapshot = max(self.snapshot, number)

    def pass_topic_id(self, topic_id: int) -> None:
        """Somebody has this id, or had it."""
        self.next_topic_id = max(self.next_topic_id, topic_id + 1)

    def pass_epoch(self, epoch: int) -> None:
        self.next_epoch = max(self.next_epoch, epoch + 1)

    def pass_segment(self, number: int) -> None:
        self.next_segment = max(self.next_segment, number + 1)

    def skip(self, *, epochs: int = 0, topic_ids: int = 0) -> None:
        """Some may have been given that nobody remembers."""
        self.next_epoch += epochs
        self.next_topic_id += topic_ids

    def new_epoch(self) -> int:
        self.next_epoch += 1
        return self.next_epoch - 1

    def new_segment(self) -> int:
        self.next_segment += 1
        return self.next_segment - 1

    def new_leases(self, count: int) -> int:
        """The first of so many."""
        self.next_lease += count
        return self.next_lease - count
