"""However much a commit publishes, everybody else is served meanwhile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topics.engine.engine import Engine
from topics.engine.state.stage_request import stage_request_of
from topics.settings import Settings

COUNT, BATCH = 200_000, 10_000
PAUSE_MS_MAX = 20


@pytest.mark.slow
@pytest.mark.parametrize("tagged", [False, True])
def test_a_large_commit_is_done_in_short_pieces(tmp_path: Path, tagged: bool) -> None:
    """The most of this thread's own time that any one call took, from the commit to its end."""
    settings = Settings(seal_records=1 << 40, seal_bytes=1 << 40)
    engine = Engine.open(str(tmp_path / "data"), settings=settings)
    names = [stage(engine, start, tagged) for start in range(0, COUNT, BATCH)]
    gc.collect()
    gc.freeze()
    longest_s = 0.0

    def timed(call: Callable[[], Any]) -> Any:
        nonlocal longest_s
        began = time.thread_time()
        answer = call()
        longest_s = max(longest_s, time.thread_time() - began)
        return answer

    ticket = timed(lambda: engine.submit_commit("p", 0, "q", names))
    seen = 0
    while not ticket.done:
        timed(engine.flush)
        timed(engine.poll)
        timed(engine.maintain)
        if not ticket.done and "t" in engine.list_topics():
            seen = max(seen, engine.state("t").head_seq)
    for _ in range(200):
        timed(engine.maintain)
    gc.unfreeze()
    assert seen == 0, "a part of it was seen"
    assert engine.state("t").head_seq == ticket.result.topics["t"].last_seq == COUNT
    assert longest_s * 1000 < PAUSE_MS_MAX
    engine.close()


def stage(engine: Engine, start: int, tagged: bool) -> str:
    tag = {"tag": "x"} if tagged else {}
    records = [{"data": "x" * 200, **tag} for _ in range(start, start + BATCH)]
    request = stage_request_of(records, engine.core.settings, topic="t", producer="p", batch=0)
    ticket = engine.submit_stage(request)
    while not ticket.done:
        engine.poll()
    return ticket.result.stage
