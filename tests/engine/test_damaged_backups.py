"""A manifest that can not be believed is told, and does not stand in front of those that can."""

from __future__ import annotations

import pytest

from tests.engine.test_backup import DEST, Vault, data_of
from tests.support.engines import World
from topics.engine.offline import backups
from topics.errors import CorruptData, InvalidRequest


@pytest.fixture
def vault(world: World) -> Vault:
    return Vault(world)


def damage(vault: Vault, backup_id: str) -> None:
    vault.world.disk.open(f"{DEST}/backups/{backup_id}.json").pwrite(b"z", 100)


def test_an_old_manifest_that_is_damaged_does_not_hold_up_a_new_backup(
    world: World, vault: Vault
) -> None:
    """What has the moment is newer, and knows more: nothing is missing."""
    world.fill("t", 1)
    old = vault.back_up()
    world.fill("t", 1)
    at_ms = vault.moment()
    new = vault.back_up()
    damage(vault, old.id)
    for which in ({}, {"at_ms": at_ms}, {"topic": "t", "seq": 2}):
        engine, done = vault.restore(**which)
        assert done.backup == new.id
        assert data_of(engine, "t") == [0] * 2
    lines, report = backups.listed(vault.store)
    assert [line.id for line in lines] == [new.id]
    assert [problem["path"] for problem in report.problems] == [f"backups/{old.id}.json"]


def test_a_new_manifest_that_is_damaged_is_not_passed_over_in_silence(
    world: World, vault: Vault
) -> None:
    """An older backup has less: whoever wants that says which."""
    world.fill("t", 1)
    old = vault.back_up()
    world.fill("t", 1)
    new = vault.back_up()
    damage(vault, new.id)
    with pytest.raises(CorruptData, match=f"{new.id}.* fails its checksum; --backup ID"):
        vault.restore()
    engine, _ = vault.restore(backup_id=old.id)
    assert data_of(engine, "t") == [0]


def test_a_moment_that_no_backup_has_is_answered_in_times(world: World, vault: Vault) -> None:
    world.fill("t", 1)
    made = vault.back_up()
    with pytest.raises(InvalidRequest) as refused:
        vault.restore(at_ms=1)
    assert "has 1970-01-01T00:00:00.001Z in its span" in refused.value.message
    assert f"Z ({made.id})" in refused.value.message
