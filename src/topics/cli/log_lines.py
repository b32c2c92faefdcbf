"""How a server's log is written: for people on a terminal, as JSON anywhere else.

Neither keys nor payloads are in it: whoever logs gives none. What a client has sent, such as a
path, is spelt so that a terminal does not act on it.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from topics.storage.fs import shown

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _more(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says beside its message."""
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


class JsonLines(logging.Formatter):
    """One JSON object a line; `ts` in milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": int(record.created * 1000),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= _more(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode("utf-8", "replace")


class TextLines(logging.Formatter):
    """A time as ISO 8601 in UTC, the level, the message, and the rest as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        more = [
            f"{name}={_value(value)}" for name, value in _more(record).items() if value is not None
        ]
        level = f"{record.levelname.lower():<7}"
        said = " ".join([when.replace("+00:00", "Z"), level, record.getMessage(), *more])
        if record.exc_info:
            return shown(said) + "\n" + self.formatException(record.exc_info)
        return shown(said)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()
    return text if text and " " not in text else f'"{text}"'
