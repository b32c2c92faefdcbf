"""What can go wrong, each with a code at the front of its message.

Spark keeps the text of an exception and loses its class: the code in brackets is what a program can
rely on.
"""

from __future__ import annotations


class TopicsSparkError(Exception):
    """Base of all; `code` stands in brackets at the front of the message."""

    code = "TOPIC_ERROR"

    def __init__(self, message: str) -> None:
        super().__init__(f"[{self.code}] {message}")


class BadOption(TopicsSparkError):
    """An option that can not be read, or does not fit another one; the message names it."""

    code = "TOPIC_OPTION"

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"option {option}: {message}")
        self.option = option

    def __reduce__(self) -> tuple[object, ...]:
        # Rebuilt from its text: the constructor would put the code in front a second time.
        return _rebuilt, (type(self), self.args[0])


class DataLoss(TopicsSparkError):
    """Seqs that a read counted on are gone, or the topic is another one."""

    code = "TOPIC_DATA_LOSS"


class TopicNotFound(TopicsSparkError):
    """A subscribed topic is not there at the start."""

    code = "TOPIC_NOT_FOUND"


class CursorInUse(TopicsSparkError):
    """Another running query reads under the same cursor."""

    code = "TOPIC_CURSOR_IN_USE"


class BadRow(TopicsSparkError):
    """A row that is no record; nothing of its batch is seen under exactly-once."""

    code = "TOPIC_BAD_ROW"


class WrongProducer(TopicsSparkError):
    """A batch of this producer is known from another query."""

    code = "TOPIC_PRODUCER_CONFLICT"


class Unreachable(TopicsSparkError):
    """The server did not answer for as long as it was tried."""

    code = "TOPIC_SERVER_UNREACHABLE"


class Refused(TopicsSparkError):
    """The server's own refusal; `status` and `reason` are its."""

    code = "TOPIC_REFUSED"

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self.args[0])


def _rebuilt(kind: type[TopicsSparkError], message: str) -> TopicsSparkError:
    error = kind.__new__(kind)
    error.args = (message,)
    return error
