"""Work beside others rests between its pieces, and alone it does not."""

from __future__ import annotations

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
