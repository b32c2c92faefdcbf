"""Fakes of the disk, the clock and the threads, shipped so that users can test against them too.

A typical stack is `MonitorFs(FaultFs(FakeDisk(seed), fault))`: the monitor outermost, since it
judges what the engine asks for, and the disk innermost, since only it can crash.
"""

from __future__ import annotations

from topics.testing.bufferedfs import BufferedFs
from topics.testing.crashplan import CrashPlan
from topics.testing.fakeclock import FakeClock
from topics.testing.fakedisk import DiskCrashed, FakeDisk
from topics.testing.faultfs import Fault, FaultFs
from topics.testing.lateness import Lateness
from topics.testing.monitorfs import MonitorFs, OrderViolation

__all__ = [
    "BufferedFs",
    "CrashPlan",
    "DiskCrashed",
    "FakeClock",
    "FakeDisk",
    "Fault",
    "FaultFs",
    "Lateness",
    "MonitorFs",
    "OrderViolation",
]
