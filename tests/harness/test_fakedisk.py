"""A FakeDisk crash keeps a legal part of what was not synced, and all of what was."""

from __future__ import annotations

import errno
import os
import random
from typing import Any

import pytest

from tests.support.tiers import quick_first
from topics.testing import CrashPlan, DiskCrashed, FakeDisk

ALL_PLANS = [*CrashPlan.standard(), *(CrashPlan.random(seed) for seed in range(20))]


def plan(name: str) -> CrashPlan:
    return next(one for one in CrashPlan.standard() if one.name == name)


def durable_file(disk: FakeDisk, path: str, data: bytes) -> Any:
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.sync()
    disk.sync_dir(os.path.dirname(path))
    return file


@pytest.mark.parametrize("one", quick_first(ALL_PLANS, 12), ids=lambda one: one.name)
class TestEveryPlan:
    """What holds after any crash whatsoever."""

    def test_synced_bytes_and_names_are_never_lost(self, one: CrashPlan) -> None:
        """Bytes synced below a durable name survive every plan, unless overwritten since."""
        disk = FakeDisk()
        file = durable_file(disk, "/a", b"s" * 10_000)
        file.pwrite(b"u" * 10_000, 10_240)
        file.sync()
        file.pwrite(b"v" * 7000, 20_480)
        disk.open("/b", create=True).pwrite(b"w", 0)
        after = disk.crash(one).files()
        assert after["/a"][:20_240] == b"s" * 10_000 + bytes(240) + b"u" * 10_000

    def test_each_sector_is_of_one_moment(self, one: CrashPlan) -> None:
        """A surviving sector equals that sector of the cache after some pending write."""
        disk = FakeDisk()
        file = durable_file(disk, "/a", bytes(16_384))
        rng = random.Random(one.seed)
        moments = [bytes(16_384)]
        for _ in range(12):
            file.pwrite(rng.randbytes(rng.randrange(1, 3000)), rng.randrange(13_000))
            moments.append(file.pread(16_384, 0))
        content = disk.crash(one).files()["/a"]
        for start in range(0, 16_384, 512):
            sector = content[start : start + 512]
            assert sector in {moment[start : start + 512] for moment in moments}

    def test_a_replaced_file_is_the_old_or_the_new(self, one: CrashPlan) -> None:
        """sync, rename and a crash before sync_dir leave one of the two contents, whole."""
        disk = FakeDisk()
        durable_file(disk, "/a", b"old").close()
        file = disk.open("/a.tmp", create=True)
        file.pwrite(b"new", 0)
        file.sync()
        disk.rename("/a.tmp", "/a")
        after = disk.crash(one).files()
        assert after["/a"] in (b"old", b"new")
        assert after.get("/a.tmp", b"new") == b"new"

    def test_a_rename_between_directories_never_loses_both_names(self, one: CrashPlan) -> None:
        """A crash may leave both names, but never neither, also after either sync_dir."""
        for synced in (None, "/x", "/y"):
            disk = FakeDisk()
            disk.mkdir("/x")
            disk.mkdir("/y")
            disk.sync_dir("/")
            durable_file(disk, "/x/a", b"content").close()
            disk.rename("/x/a", "/y/b")
            if synced is not None:
                disk.sync_dir(synced)
            after = disk.crash(one).files()
            assert after in (
                {"/x/a": b"content"},
                {"/y/b": b"content"},
                {"/x/a": b"content", "/y/b": b"content"},
            )
            if synced == "/x":
                assert after == {"/y/b": b"content"}
            if synced == "/y":
                assert "/y/b" in after

    def test_a_lost_name_operation_takes_its_dependents_along(self, one: CrashPlan) -> None:
        """Reusing a name cannot destroy the synced file that held it before."""
        disk = FakeDisk()
        durable_file(disk, "/a", b"first").close()
        disk.rename("/a", "/b")
        disk.open("/a", create=True).close()
        after = disk.crash(one).files()
        assert b"first" in after.values()

    def test_a_second_crash_changes_nothing(self, one: CrashPlan) -> None:
        """After a crash all is durable: crashing again, with any plan, gives the same image."""
        disk = _busy_disk()
        once = disk.crash(one)
        image = once.image_hash()
        files = once.files()
        for other in ALL_PLANS:
            again = once.crashed(other)
            assert again.image_hash() == image
            assert again.files() == files

    def test_replaying_a_plan_gives_the_same_image(self, one: CrashPlan) -> None:
        """Plan, seed and calls decide the image and nothing else does."""
        assert _busy_disk().crash(one).image_hash() == _busy_disk().crash(one).image_hash()


def _busy_disk(seed: int = 0) -> FakeDisk:
    disk = FakeDisk(seed)
    disk.mkdir("/d/e")
    disk.sync_dir("/")
    for number in range(6):
        path = f"/d/{number}"
        file = disk.open(path, create=True)
        file.allocate(32_768)
        for turn in range(4):
            file.pwrite(bytes([number * 16 + turn + 1]) * 2000, turn * 1700)
            if turn == 1 and number % 2:
                file.sync()
    disk.sync_dir("/d")
    disk.rename("/d/0", "/d/e/0")
    disk.rename("/d/1", "/d/2")
    disk.unlink("/d/3")
    disk.open("/d/3", create=True).pwrite(b"again", 0)
    return disk


class TestCrash:
    def test_an_unsynced_write_is_lost_or_kept_as_the_plan_says(self) -> None:
        """Nothing is promised about unsynced bytes."""
        disk = FakeDisk()
        durable_file(disk, "/a", b"old").pwrite(b"new", 0)
        assert disk.crashed(plan("lose-all")).files() == {"/a": b"old"}
        assert disk.crashed(plan("keep-all")).files() == {"/a": b"new"}

    def test_the_size_may_survive_without_the_data(self) -> None:
        """size-before-data: the file has grown, the new bytes are zeros."""
        disk = FakeDisk()
        durable_file(disk, "/a", b"old").pwrite(b"new", 3)
        assert disk.crash(plan("size-before-data")).files() == {"/a": b"old\0\0\0"}

    def test_sectors_and_pages_are_torn_apart(self) -> None:
        """One write may survive in any of its sectors, or in one of its pages."""
        disk = FakeDisk()
        durable_file(disk, "/a", bytes(8192)).pwrite(b"x" * 8192, 0)
        odd = disk.crashed(plan("odd-sectors")).files()["/a"]
        assert odd == (bytes(512) + b"x" * 512) * 8
        assert disk.crashed(plan("first-page-only")).files()["/a"] == b"x" * 4096 + bytes(4096)
        assert disk.crashed(plan("prefix")).files()["/a"] == b"x" * 4096 + bytes(4096)

    def test_later_writes_may_survive_earlier_ones(self) -> None:
        """Write order is not persistence order."""
        disk = FakeDisk()
        file = durable_file(disk, "/a", bytes(2048))
        file.pwrite(b"1" * 512, 0)
        file.pwrite(b"2" * 512, 1024)
        after = disk.crash(plan("last-write-only")).files()["/a"]
        assert after == bytes(1024) + b"2" * 512 + bytes(512)

    def test_a_created_file_may_vanish_until_its_directory_is_synced(self) -> None:
        """Syncing a file does not make its name durable."""
        disk = FakeDisk()
        file = disk.open("/a", create=True)
        file.pwrite(b"x", 0)
        file.sync()
        assert disk.crashed(plan("dirs-lost-data-kept")).files() == {}
        disk.sync_dir("/")
        assert disk.crash(plan("lose-all")).files() == {"/a": b"x"}

    def test_a_durable_name_of_an_unsynced_file_is_empty(self) -> None:
        """Syncing a directory does not make the bytes of its files durable."""
        disk = FakeDisk()
        disk.open("/a", create=True).pwrite(b"x", 0)
        assert disk.crash(plan("dirs-kept-data-lost")).files() == {"/a": b""}

    def test_a_file_below_a_lost_directory_is_gone(self) -> None:
        """Each name on the way must be durable."""
        disk = FakeDisk()
        disk.mkdir("/d")
        durable_file(disk, "/d/a", b"x").close()
        assert disk.crashed(plan("lose-all")).files() == {}
        disk.sync_dir("/")
        assert disk.crash(plan("lose-all")).files() == {"/d/a": b"x"}

    def test_renames_and_unlinks_may_be_undone(self) -> None:
        """A rename or an unlink without sync_dir may never have happened."""
        disk = FakeDisk()
        durable_file(disk, "/a", b"1").close()
        durable_file(disk, "/b", b"2").close()
        disk.rename("/a", "/c")
        disk.unlink("/b")
        assert disk.crashed(plan("lose-all")).files() == {"/a": b"1", "/b": b"2"}
        assert disk.crashed(plan("renames-lost")).files() == {"/a": b"1"}
        assert disk.crashed(plan("unlinks-undone")).files() == {"/b": b"2", "/c": b"1"}
        assert disk.crashed(plan("keep-all")).files() == {"/c": b"1"}

    def test_an_unlink_may_survive_the_creation_before_it(self) -> None:
        """Deleting the old file before syncing the name of the new one can lose both."""
        disk = FakeDisk()
        durable_file(disk, "/old", b"x").close()
        file = disk.open("/new", create=True)
        file.pwrite(b"x", 0)
        file.sync()
        disk.unlink("/old")
        assert disk.crash(plan("only-unlinks-kept")).files() == {}

    def test_random_plans_reach_many_images(self) -> None:
        """Different seeds choose differently."""
        disk = _busy_disk()
        images = {disk.crashed(CrashPlan.random(seed)).image_hash() for seed in range(100)}
        assert len(images) > 80
        one = CrashPlan.random(1)
        assert len({_busy_disk(seed).crash(one).image_hash() for seed in range(10)}) > 5

    def test_a_crash_ends_the_old_disk_and_its_handles(self) -> None:
        """New boot id, locks released, nothing of the old object works, closing is silent."""
        disk = FakeDisk()
        lock = disk.lock("/lock", "me")
        file = durable_file(disk, "/a", b"x")
        before = disk.boot_id()
        after = disk.crash(plan("keep-all"))
        assert after.boot_id() != before
        after.lock("/lock", "you").release()
        for call in (disk.boot_id, file.sync, file.size, lambda: disk.open("/a"), disk.clone):
            with pytest.raises(DiskCrashed):
                call()
        file.close()
        lock.release()

    def test_a_kill_keeps_the_cache_and_leaves_it_pending(self) -> None:
        """SIGKILL: same boot, locks released, unsynced bytes readable but still losable."""
        disk = FakeDisk()
        disk.lock("/lock", "me")
        file = disk.open("/a", create=True)
        file.pwrite(b"x", 0)
        before = disk.boot_id()
        after = disk.kill()
        assert after.boot_id() == before
        assert after.files()["/a"] == b"x"
        after.lock("/lock", "you")
        with pytest.raises(DiskCrashed):
            file.pread(1, 0)
        assert after.crash(plan("lose-all")).files() == {}

    def test_a_clone_is_independent(self) -> None:
        """Neither side of a clone sees what the other does next."""
        disk = _busy_disk()
        twin = disk.clone()
        assert twin.files() == disk.files()
        one = CrashPlan.random(1)
        assert twin.crashed(one).image_hash() == disk.crashed(one).image_hash()
        disk.open("/d/4").pwrite(b"changed", 0)
        disk.unlink("/d/5")
        assert twin.files()["/d/4"][:7] != b"changed"
        assert "/d/5" in twin.files()
        assert twin.crashed(plan("keep-all")).files() == twin.files()

    def test_the_hook_runs_before_each_mutating_call(self) -> None:
        """The hook sees index, operation and path; what it raises prevents the call."""
        disk = FakeDisk()
        seen: list[tuple[int, str, str]] = []
        disk.on_mutation = lambda *call: seen.append(call)
        disk.mkdir("/d")
        file = disk.open("/d/a", create=True)
        file.pwrite(b"x", 0)
        file.allocate(10)
        file.truncate(5)
        file.sync()
        disk.rename("/d/a", "/d/b")
        disk.unlink("/d/b")
        disk.sync_dir("/d")
        operations = [
            "mkdir",
            "create",
            "pwrite",
            "allocate",
            "truncate",
            "sync",
            "rename",
            "unlink",
            "sync_dir",
        ]
        assert [operation for _, operation, _ in seen] == operations
        assert [index for index, _, _ in seen] == list(range(disk.mutations))

        def refuse(*_: Any) -> None:
            raise KeyboardInterrupt

        disk.on_mutation = refuse
        with pytest.raises(KeyboardInterrupt):
            disk.open("/d/c", create=True)
        assert disk.listdir("/d") == []
        disk.on_mutation = lambda *_: disk.crash(plan("lose-all")) and None
        with pytest.raises(DiskCrashed):
            disk.mkdir("/e")

    def test_a_full_disk_refuses_growth_until_space_returns(self) -> None:
        """ENOSPC from pwrite (after a prefix), allocate and create; reserved room stays usable."""
        disk = FakeDisk(capacity_bytes=16 * 4096)
        reserve = disk.open("/reserve", create=True)
        reserve.allocate(8 * 4096)
        file = disk.open("/a", create=True)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.pwrite(b"x" * 9 * 4096, 100)
        assert file.size() == 8 * 4096
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.allocate(9 * 4096)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            disk.open("/b", create=True)
        file.pwrite(b"y" * 4096, 0)
        reserve.pwrite(b"z" * 8 * 4096, 0)
        disk.unlink("/reserve")
        assert disk.used_bytes() == 16 * 4096
        reserve.close()
        disk.open("/b", create=True).pwrite(b"x" * 8 * 4096, 0)
