"""Work beside others rests between its pieces, and alone it does not."""

from __future__ import annotations

from tests.support.engines import World
from topics.engine.commit.background import REST_S_MAX, Background, Jobs


class Rested(Jobs):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def rest(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_it_rests_beside_others_and_not_for_ever() -> None:
    background = Background(threads=False)
    background.jobs = rested = Rested()
    for seconds in (0.1, 0.2, 60.0):
        background.rest(seconds)
    assert rested.seconds == [0.1, 0.2, REST_S_MAX]


def test_it_does_not_rest_while_nobody_else_is_there() -> None:
    """Whoever rewrites or backs up a server that is idle gets all of it."""
    background = Background(threads=False)
    background.jobs = rested = Rested()
    for is_there in (False, True, False):
        background.has_company = lambda is_there=is_there: is_there
        background.rest(0.1)
    assert len(rested.seconds) == 1


def test_a_call_that_is_waited_for_does_not_rest(world: World) -> None:
    """Nobody else gets anything from an engine while its thread waits for this."""
    world.engine.core.background.jobs = rested = Rested()
    for _ in range(2):
        world.fill("t", 3)
        world.engine.checkpoint()
    world.engine.delete("t", before_seq=3)
    world.engine.rewrite("t")
    world.engine.backup("/backups")
    assert rested.seconds == []
    done = world.engine.begin_backup("/others")
    while done is not None and done.state == "running":
        world.engine.maintain(1.0)
        done = world.engine.backup_status
    assert rested.seconds != []
