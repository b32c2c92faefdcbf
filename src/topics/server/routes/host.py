"""What the system says of this process and of its disk, for metrics.

Read in a thread: there may be many files, and a disk may take its time. What can not be read is
left out. The names of the process's own metrics are those that every Prometheus client has.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from topics.server.api.gauges import Family, Metric, one

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512
# Where the fields of /proc/self/stat are, counted from after the name, which may hold anything.
_USER_TICKS, _SYSTEM_TICKS, _THREADS, _STARTED_TICKS = 11, 12, 17, 19
_VIRTUAL_BYTES, _RESIDENT_PAGES = 20, 21


def of_host(data_dir: str) -> Iterator[Metric]:
    """Everything that is said here."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        yield from _process()
    with contextlib.suppress(OSError):
        yield from _disk(data_dir)


def _process() -> Iterator[Metric]:
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    spent_s = (int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS])) / _TICKS_PER_S
    started_s = _booted_s() + int(stat[_STARTED_TICKS]) / _TICKS_PER_S
    rows = (
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.",
         int(stat[_VIRTUAL_BYTES])),
        ("process_resident_memory_bytes", "Resident memory size in bytes.",
         int(stat[_RESIDENT_PAGES]) * _PAGE_BYTES),
        ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
         started_s),
        ("process_threads", "Number of threads of the process.", int(stat[_THREADS])),
        ("process_open_fds", "Number of open file descriptors.", len(os.listdir("/proc/self/fd"))),
        ("process_max_fds", "Maximum number of open file descriptors.",
         resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    )  # fmt: skip
    about = "Total user and system CPU time spent in seconds."
    yield one("process_cpu_seconds_total", "counter", about, spent_s)
    for name, about, value in rows:
        yield one(name, "gauge", about, value)


def _booted_s() -> int:
    for line in Path("/proc/stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "btime":
            return int(value)
    raise ValueError("/proc/stat does not say when the system was started")


def _disk(data_dir: str) -> Iterator[Metric]:
    found = os.statvfs(data_dir)
    yield one(
        "topics_disk_free_bytes", "gauge",
        "Bytes that the server may still write on the filesystem of its data directory.",
        found.f_bavail * found.f_frsize,
    )  # fmt: skip
    yield one(
        "topics_disk_size_bytes", "gauge", "Size of the filesystem of the data directory in bytes.",
        found.f_blocks * found.f_frsize,
    )  # fmt: skip
    yield Family(
        "topics_disk_used_bytes", "gauge",
        "Bytes that the files of the data directory take on the disk, by subdirectory.",
        "directory", [(name, _taken_bytes(path)) for name, path in _directories(data_dir)],
    )  # fmt: skip


def _directories(root: str) -> list[tuple[str, str]]:
    with os.scandir(root) as entries:
        found = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return [(".", root), *((name, os.path.join(root, name)) for name in found)]


def _taken_bytes(path: str) -> int:
    """What the files right in a directory take, those that go meanwhile left out."""
    total = 0
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
    return total
