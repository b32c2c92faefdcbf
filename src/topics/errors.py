"""The one error tree. Every failure a caller can meet has a class, a stable code and a status.

    TopicsError
    ├── InvalidRequest          400 invalid_request
    │   ├── BatchTooLarge       400 batch_too_large
    │   ├── RecordTooLarge      400 record_too_large
    │   └── PayloadTooLarge     413 payload_too_large
    ├── Unauthorized            401 unauthorized
    ├── Forbidden               403 forbidden
    ├── NotFound                404
    │   ├── TopicNotFound       404 topic_not_found
    │   ├── RouterNotFound      404 router_not_found
    │   ├── BucketNotFound      404 bucket_not_found
    │   ├── KeyNotFound         404 key_not_found
    │   └── SnapshotNotFound    404 snapshot_not_found
    ├── Conflicting             409 conflict
    │   ├── Incompatible        409 topic_exists_incompatible
    │   ├── NotEmpty            409 topic_not_empty
    │   ├── NotAQueue           409 not_a_queue
    │   ├── CursorLeased        409 cursor_leased
    │   ├── CursorRegressed     409 cursor_regressed
    │   └── RouterCycle         409 router_cycle
    ├── StageExpired            410 stage_expired
    ├── Compacted               410 compacted
    ├── TopicFull               422 topic_full
    ├── Throttled               429 throttled
    ├── NotReady                503 not_ready
    ├── Closed                  503 shutting_down
    ├── OutcomeUnknown          503 outcome_unknown
    ├── Unreachable             503 unreachable: the server or the store does not answer
    ├── Refused                 an answer with a code that is not in this tree
    ├── WrongThread             an engine was called from another thread than the one it is in
    ├── DiskFull                507 disk_full
    │   └── Overloaded          503 overloaded
    └── StorageError            500 internal
        ├── CorruptData         500 corrupt_data: stored bytes that fail their checksum
        ├── Unreadable          503 unreadable: the disk failed a read
        ├── DirectoryLocked     another process owns the data directory
        ├── FormatMismatch      the directory was written by another format version
        ├── StoreUnreachable    503 store_unreachable: the cold store does not answer
        └── Poisoned            a sync failed; the process must exit and recover

The message says what happened, what is still true and what to try; `detail` is for machines.
"""

from __future__ import annotations

from typing import Any


class TopicsError(Exception):
    """Base of every error this package raises on purpose."""

    code: str = "internal"
    status: int = 500

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class InvalidRequest(TopicsError):
    code = "invalid_request"
    status = 400


class BatchTooLarge(InvalidRequest):
    code = "batch_too_large"


class RecordTooLarge(InvalidRequest):
    code = "record_too_large"


class PayloadTooLarge(InvalidRequest):
    code = "payload_too_large"
    status = 413


class Unauthorized(TopicsError):
    code = "unauthorized"
    status = 401


class Forbidden(TopicsError):
    code = "forbidden"
    status = 403


class NotFound(TopicsError):
    code = "not_found"
    status = 404


class TopicNotFound(NotFound):
    code = "topic_not_found"


class RouterNotFound(NotFound):
    code = "router_not_found"


class BucketNotFound(NotFound):
    code = "bucket_not_found"


class KeyNotFound(NotFound):
    code = "key_not_found"


class SnapshotNotFound(NotFound):
    code = "snapshot_not_found"


class Conflicting(TopicsError):
    code = "conflict"
    status = 409


class Incompatible(Conflicting):
    code = "topic_exists_incompatible"


class NotEmpty(Conflicting):
    code = "topic_not_empty"


class NotAQueue(Conflicting):
    code = "not_a_queue"


class CursorLeased(Conflicting):
    code = "cursor_leased"


class CursorRegressed(Conflicting):
    code = "cursor_regressed"


class RouterCycle(Conflicting):
    code = "router_cycle"


class StageExpired(TopicsError):
    """A commit names a stage that is not there. Nothing was committed: stage again."""

    code = "stage_expired"
    status = 410


class Compacted(TopicsError):
    """A past state of a bucket needs something that compaction removed."""

    code = "compacted"
    status = 410


class TopicFull(TopicsError):
    code = "topic_full"
    status = 422


class Throttled(TopicsError):
    code = "throttled"
    status = 429


class NotReady(TopicsError):
    code = "not_ready"
    status = 503


class Closed(TopicsError):
    code = "shutting_down"
    status = 503


class OutcomeUnknown(TopicsError):
    """The write may or may not be there after recovery: retry with the same idempotency key."""

    code = "outcome_unknown"
    status = 503


class Unreachable(TopicsError):
    """The server or the store can not be reached; nothing is known about what it holds."""

    code = "unreachable"
    status = 503


class Refused(TopicsError):
    """The server refused with a code that this version does not know; code and status are its."""

    code = "unknown"

    def __init__(
        self, message: str, code: str = "unknown", status: int = 500, **detail: Any
    ) -> None:
        super().__init__(message, **detail)
        self.code = code
        self.status = status


class WrongThread(TopicsError):
    pass


class DiskFull(TopicsError):
    code = "disk_full"
    status = 507


class Overloaded(DiskFull):
    """No room in the process instead of on the disk. Nothing was done, and it may be repeated."""

    code = "overloaded"
    status = 503


class StorageError(TopicsError):
    pass


class CorruptData(StorageError):
    """Stored bytes are not what was written. They are never served, and reading again is no help:
    `topics check` says what is affected, `topics repair` makes an explicit loss of it."""

    code = "corrupt_data"


class Unreadable(StorageError):
    """The disk failed a read of sealed records. Nothing was changed; it may work again."""

    code = "unreadable"
    status = 503


class DirectoryLocked(StorageError):
    pass


class FormatMismatch(StorageError):
    pass


class StoreUnreachable(StorageError):
    """Records in the cold store can not be had now. Nothing is lost: retry when it is back."""

    code = "store_unreachable"
    status = 503


class Poisoned(StorageError):
    pass
