"""A memory that runs out at one call of a codec."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from topics.storage import columns, segment

# Where bytes are put together or taken apart; each is called through its module.
CODECS: tuple[tuple[Any, str], ...] = (
    (columns, "encode"), (columns, "decode"), (segment, "read_block"), (segment, "encode_rows"),
)  # fmt: skip


class Memory:
    """`fails_at` the nth call of any codec from now on, once; None means there is enough."""

    def __init__(self) -> None:
        self.fails_at: int | None = None
        self.fired = 0

    def take(self) -> None:
        if self.fails_at is None:
            return
        self.fails_at -= 1
        if self.fails_at <= 0:
            self.fails_at = None
            self.fired += 1
            raise MemoryError("planned")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Every codec asks this memory first."""
        before = [(module, name, getattr(module, name)) for module, name in CODECS]
        for module, name, call in before:
            setattr(module, name, self._asking(call))
        try:
            yield
        finally:
            for module, name, call in before:
                setattr(module, name, call)

    def _asking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*given: Any, **named: Any) -> Any:
            self.take()
            return call(*given, **named)

        return asked
