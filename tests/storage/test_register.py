"""A register keeps what was synced over any crash, and everything over the end of its process."""

from __future__ import annotations

import errno
import random

import pytest

from topics.errors import DiskFull
from topics.storage import register as register_module
from topics.storage.fs import opened
from topics.storage.register import Register
from topics.testing import CrashPlan, FakeDisk, Fault, FaultFs, MonitorFs

NAME = "SESSIONS"
PLANS = [
    CrashPlan("all", "keep", "keep"), CrashPlan("none", "lose", "lose"),
    CrashPlan("some", "random", "random"), CrashPlan("names only", "lose", "keep"),
]  # fmt: skip


def reopened(disk: FakeDisk) -> tuple[Register, dict[str, bytes]]:
    register = Register(MonitorFs(disk), "/data", NAME)
    return register, register.load()


def fresh() -> FakeDisk:
    disk = FakeDisk()
    disk.mkdir("/data")
    disk.sync_dir("/")
    return disk


def rewritten(register: Register) -> None:
    register.write_anew(register.begin_anew())
    register.take_over()


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_takes_no_more_than_what_was_not_synced(seed: int) -> None:
    """What is found is what stood at some moment, not before the last sync."""
    chance = random.Random(seed)
    disk, values = fresh(), dict[str, bytes]()
    for _ in range(6):
        register, found = reopened(disk)
        assert found == values
        # What stood at each moment since the last sync.
        moments = [dict(values)]
        for _ in range(chance.randint(0, 25)):
            name = f"wid_{chance.randint(0, 9)}"
            what = chance.random()
            if what < 0.6:
                values[name] = chance.randbytes(chance.randint(0, 900))
                register.put(name, values[name])
            elif what < 0.8:
                register.remove(name)
                values.pop(name, None)
            elif what < 0.9:
                rewritten(register)
                register.sync()
                moments.clear()
            else:
                register.sync()
                moments.clear()
            moments.append(dict(values))
        if chance.random() < 0.4:
            register.close()
            disk = disk.kill()
            continue
        plan = chance.choice([*PLANS, CrashPlan.random(seed)])
        after = disk.crash(plan)
        _, values = reopened(after)
        assert values in moments, plan
        disk = after.kill()


def test_what_is_put_while_it_is_written_anew_is_in_the_new_file() -> None:
    disk = fresh()
    register, _ = reopened(disk)
    for name in "abc":
        register.put(name, name.encode())
    entries = register.begin_anew()
    register.put("b", b"other")
    register.remove("a")
    register.write_anew(entries)
    register.put("d", b"d")
    register.write_late(register.take_late())
    register.take_over()
    register.put("e", b"e")
    _, found = reopened(disk.kill())
    assert found == {"b": b"other", "c": b"c", "d": b"d", "e": b"e"}


def test_waste_is_noticed_and_written_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_module, "WASTE_BYTES_MIN", 1000)
    disk = fresh()
    register, _ = reopened(disk)
    for number in range(200):
        register.put(f"wid_{number % 3}", bytes(50))
        if register.is_wasteful:
            rewritten(register)
    with opened(disk, f"/data/{NAME}") as file:
        assert file.size() < 2500
    assert set(reopened(disk.kill())[1]) == {"wid_0", "wid_1", "wid_2"}


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_torn_end_is_left_behind(cut: int) -> None:
    disk = fresh()
    register, _ = reopened(disk)
    register.put("a", b"1" * 20)
    register.put("b", b"2" * 20)
    with opened(disk, f"/data/{NAME}") as file:
        file.truncate(file.size() - cut)
    after = disk.kill()
    register, found = reopened(after)
    assert found == {"a": b"1" * 20}
    register.put("c", b"3")
    assert reopened(after.kill())[1] == {"a": b"1" * 20, "c": b"3"}


def test_any_garbage_is_an_empty_register() -> None:
    disk = fresh()
    for content in (b"", b"x", b"TOPREG\x00\x01", b"TOPREG\x00\x01" + bytes(100), bytes(5000)):
        with opened(disk, f"/data/{NAME}", create=True) as file:
            file.truncate(0)
            file.pwrite(content, 0)
        register, found = reopened(disk)
        assert found == {}
        register.put("a", b"1")
        disk = disk.kill()
        assert reopened(disk)[1] == {"a": b"1"}
        disk = disk.kill()


def test_a_full_disk_refuses_and_the_next_entry_takes_its_place() -> None:
    disk = fresh()
    fs = FaultFs(disk)
    register = Register(fs, "/data", NAME)
    register.load()
    register.put("a", b"1")
    fs.fault = Fault("pwrite", errno=errno.ENOSPC, path_contains=NAME)
    with pytest.raises(DiskFull):
        register.put("b", b"2" * 100)
    register.put("c", b"3")
    assert reopened(disk.kill())[1] == {"a": b"1", "c": b"3"}


def test_after_a_failed_sync_it_is_written_anew() -> None:
    disk = fresh()
    fs = FaultFs(disk)
    register = Register(MonitorFs(fs, forbid_use_after_failed_sync=False), "/data", NAME)
    register.load()
    register.put("a", b"1")
    fs.fault = Fault("sync", errno=errno.EIO, path_contains=NAME)
    with pytest.raises(OSError, match="Input/output"):
        register.sync()
    assert register.is_wasteful
    rewritten(register)
    register.sync()
    assert not register.is_wasteful
    assert reopened(disk.crash(PLANS[1]))[1] == {"a": b"1"}
