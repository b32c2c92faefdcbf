"""How this process asks the system for memory.

Payloads of a few hundred kilobytes that stay for long are the worst case of glibc's defaults: each
gets a mapping of its own, and every page of it a fault, which costs more than rendering it did.
Taken from one heap that grows in large steps, the same append takes three quarters of the time.
"""

from __future__ import annotations

import ctypes
import sys

from topics.settings import MIB

# From glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
HEAP_STEP_BYTES = 64 * MIB
# What lies free at the top of the heap beyond this goes back to the system.
HEAP_FREE_BYTES_MAX = 256 * MIB
MAPPED_BYTES_MIN = 1024 * MIB


def use_one_heap() -> bool:
    """For the whole process, so for one that is ours; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    options = (
        (_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
        (_TOP_PAD, HEAP_STEP_BYTES),
        (_TRIM_THRESHOLD, HEAP_FREE_BYTES_MAX),
    )
    return all(mallopt(option, value) == 1 for option, value in options)
