"""What is done beside requests comes behind those that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers import inside
from topics.engine.engine import Engine


def test_maintenance_comes_behind_a_write_of_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    flush, maintain = Engine.flush, Engine.maintain

    def noted_flush(engine: Engine) -> None:
        seen.append("write")
        flush(engine)

    def noted_maintain(engine: Engine, budget_s: float) -> bool:
        seen.append("maintenance")
        return maintain(engine, budget_s)

    monkeypatch.setattr(Engine, "flush", noted_flush)
    monkeypatch.setattr(Engine, "maintain", noted_maintain)
    with inside(tmp_path) as served:
        driver = served.services.driver

        def meet() -> None:
            """Maintenance is next, and then something is written."""
            seen.clear()
            driver.work_soon()
            driver.flush_soon()

        served.run(meet)
        served.wait_until(lambda: len(seen) >= 2)
    assert seen[:2] == ["write", "maintenance"]
