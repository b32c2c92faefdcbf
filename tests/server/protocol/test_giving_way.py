"""Long work leaves others the core while they are there, and goes on when they are not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.servers import inside
from topics.server.http import giving_way
from topics.server.http.giving_way import Company
from topics.server.http.turns import TurnEnd


def test_others_are_there_for_a_while_after_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn of the loop that had something to do counts."""
    now_s = 100.0
    monkeypatch.setattr(giving_way, "perf_counter", lambda: now_s)

    async def scenario() -> list[bool]:
        nonlocal now_s
        turn_end = TurnEnd(asyncio.get_running_loop())
        company = Company(lambda: turn_end.count)
        seen = [company.is_present()]
        now_s += giving_way.PRESENT_S
        seen.append(company.is_present())
        turn_end.defer(lambda: None)
        await asyncio.sleep(0)
        seen.append(company.is_present())
        now_s += giving_way.PRESENT_S
        seen.append(company.is_present())
        return seen

    assert asyncio.run(scenario()) == [True, False, True, False]


def test_a_backup_does_not_rest_for_whoever_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`topics backup` asks how far it is, several times a second."""
    now_s = 100.0
    with inside(tmp_path / "data") as served, served.client() as client:
        monkeypatch.setattr(giving_way, "perf_counter", lambda: now_s)
        has_company = served.services.engine.core.background.has_company
        assert client.post("/v0/backup", {"dest": str(tmp_path / "backups")}).status == 202
        has_company()
        now_s += giving_way.PRESENT_S
        for _ in range(5):
            client.get("/v0/backup")
        assert not has_company()
        client.get("/v0/topics")
        served.wait_until(has_company)
