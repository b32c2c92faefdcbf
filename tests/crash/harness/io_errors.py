"""Every call of a workload that can fail, each failure of it, and what must hold afterwards."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from tests.crash.harness.log_harness import LOSE_ALL, SETTINGS, Run, check_image, deterministic
from topics.errors import OutcomeUnknown, Poisoned, TopicsError
from topics.testing import CrashPlan, FakeDisk, Fault, FaultFs
from topics.testing.modelcheck import Ending, Violation

ERRNOS = (
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EACCES,
    errno.EFBIG, errno.EROFS,
)  # fmt: skip
OPERATIONS = (
    "pwrite", "sync", "sync_dir", "create", "open", "allocate", "truncate", "rename", "unlink",
    "pread", "listdir",
)  # fmt: skip
SYNC_EFFECTS = ("dropped", "persisted", "cached", "ignored")


def workload(run: Run) -> None:
    """Every kind of call on the disk, in as few steps as possible."""
    run.put("a", durability="fsync")
    run.append("a", 2, key="k1")
    run.append("b", 3)
    run.delete("a", match="x")
    run.checkpoint()
    run.append("a", 2, size=400)
    run.delete("b", before=2)
    run.advance(60)
    run.checkpoint()
    run.append("b", 2, key="k2")
    for _ in range(3):
        run.append("a", 1, size=3000)
    run.delete("a", match="y:*")
    run.checkpoint()
    run.drop("b")
    run.append("c", 1)
    run.verify()


def counted_calls() -> dict[str, int]:
    """How often the workload makes each call, after the engine is open."""
    seen: list[FaultFs] = []

    def wrap(disk: FakeDisk) -> FaultFs:
        seen.append(FaultFs(disk))
        return seen[-1]

    with deterministic(1):
        run = Run(wrap=wrap)
        before = dict(seen[0].calls)
        workload(run)
        after = dict(seen[0].calls)
    return {name: after.get(name, 0) - before.get(name, 0) for name in OPERATIONS}


def run_with(fault: Fault) -> tuple[Run, str]:
    """The workload with one planned fault; how it ended."""
    seen: list[FaultFs] = []

    def wrap(disk: FakeDisk) -> FaultFs:
        seen.append(FaultFs(disk))
        return seen[-1]

    run = Run(wrap=wrap)
    seen[0].fault = fault
    ending = "done"
    try:
        workload(run)
    except (OutcomeUnknown, Poisoned):
        ending = "unknown"
    except TopicsError:
        ending = "rejected"
    except OSError as error:
        raise Violation(f"a bare {error!r} came out of the engine with {fault}") from error
    seen[0].fault = None
    return run, ending


def check_after(run: Run, ending: str, fault: Fault) -> None:
    """After a kill, after a crash that loses all, and after one that keeps all."""
    wall = run.clock.wall_ms()
    try:
        # Storage that failed may have dropped pages: then a kill is no better than a crash.
        is_sure = ending != "unknown" and fault.operation not in ("sync", "sync_dir")
        failed: Ending = "kill" if is_sure else "crash"
        check_image(run.disk.clone().kill(), run.model.copy(), failed, wall, SETTINGS)
        for plan in (LOSE_ALL, CrashPlan.standard()[1]):
            check_image(run.disk.crashed(plan), run.model.copy(), "crash", wall, SETTINGS)
    except Exception as error:
        raise Violation(f"after {fault} ({ending}): {type(error).__name__}: {error}") from error


def cases(every: int) -> Iterator[Fault]:
    number = 0
    for operation, calls in counted_calls().items():
        for nth in range(1, calls + 1):
            for forever in (False, True):
                effects = SYNC_EFFECTS if operation == "sync" else ("ignored",)
                for code in ERRNOS:
                    for effect in effects:
                        number += 1
                        if number % every == 0:
                            yield Fault(
                                operation, nth, code, forever=forever, sync_effect=effect,
                                short_bytes=700 if operation == "pwrite" and nth % 2 else None,
                            )  # fmt: skip
