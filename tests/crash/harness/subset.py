"""An ordinary part of the crash and I/O-error suites, for a product that may have a bug in it.

`python -m tests.crash.harness.subset SECONDS AREA FIRST` exits 0 when nothing was found, 3 when
something was. FIRST is the workflow to begin with.
"""

from __future__ import annotations

import itertools
import sys
import time

from tests.crash.harness.backup_histories import run_history as backup_history
from tests.crash.harness.backup_sweep import crash_backups, crash_restores
from tests.crash.harness.backup_tears import run_tear
from tests.crash.harness.class_histories import run_class_history, theme_of
from tests.crash.harness.histories.draws import mood_of
from tests.crash.harness.histories.history import failure as whole_failure
from tests.crash.harness.io_errors import cases, check_after, run_with
from tests.crash.harness.log_harness import Sweep, deterministic
from tests.crash.harness.queue_histories import random_history
from tests.crash.harness.queue_sweep import QueueSweep
from tests.crash.harness.queue_workflows import WORKFLOWS as QUEUE_WORKFLOWS
from tests.crash.harness.rot import check_fallback
from tests.crash.harness.router_harness import RouterSweep
from tests.crash.harness.router_histories import random_history as chain_history
from tests.crash.harness.router_workflows import WORKFLOWS as ROUTER_WORKFLOWS
from tests.crash.harness.stage_harness import StageSweep
from tests.crash.harness.stage_lateness import run_late_history
from tests.crash.harness.stage_workflows import WORKFLOWS as STAGE_WORKFLOWS
from tests.crash.harness.stage_workflows import run_history as stage_history
from tests.crash.harness.workflows import WORKFLOWS
from tests.kv.kv_sweep import sweep as bucket_sweep
from tests.kv.kv_world import history as bucket_history
from topics.testing import CrashPlan, OrderViolation

FOUND = 3
# However little of the machine a search gets.
WAITED_S_MAX = 240.0
ORDER = (
    "append_fsync", "append_disk", "all_classes", "caps", "sliced_promotion", "promotion",
    "delete_after_seal", "relocation", "sliced_checkpoint", "overtaken", "ghosts",
    "drop_and_recreate", "checkpoints", "restarts", "long_tail", "configure", "pipelined",
    "ttl", "idle", "rotation", "delete_before_seal", "rewriting", "overtaken_rewriting", "erasing",
)  # fmt: skip
QUEUES = ("life", "failing", "changing", "failing_while_full", "beside_checkpoints")
PLANS = [
    plan for plan in CrashPlan.standard()
    if plan.name in ("lose-all", "keep-all", "odd-sectors", "dirs-lost-data-kept")
]  # fmt: skip


def search(seconds: float, first: str) -> str | None:
    """What was found first, or None; begins with the workflow `first` if that is one."""
    stop = time.monotonic() + seconds
    try:
        faults = sorted(cases(211), key=lambda fault: fault.operation != "sync")
        check_fallback()
    except (Exception, OrderViolation) as error:
        return f"{type(error).__name__}: {error}"
    for turn, name in enumerate(sorted(ORDER, key=lambda name: name != first)):
        workflow, settings = WORKFLOWS[name]
        sweep = Sweep(PLANS, stop_at_first=True, until_s=stop)
        try:
            sweep.run(workflow, settings)
            for fault in faults[turn :: len(ORDER)]:
                with deterministic(1):
                    run, ending = run_with(fault)
                    check_after(run, ending, fault)
        except (Exception, OrderViolation) as error:
            return f"{name}: {type(error).__name__}: {error}"
        if time.monotonic() > stop:
            break
    return None


def search_queues(seconds: float, first: str) -> str | None:
    stop = time.monotonic() + seconds
    plans = [plan for plan in PLANS if plan.name == "lose-all"]
    for name in sorted(QUEUES, key=lambda name: name != first):
        try:
            QueueSweep(plans, random_plans=3).run(*QUEUE_WORKFLOWS[name])
            for seed in range(10):
                with deterministic(seed):
                    random_history(seed, 60)
        except (Exception, OrderViolation) as error:
            return f"{name}: {type(error).__name__}: {error}"
        if time.monotonic() > stop:
            break
    return None


def search_routers(seconds: float, first: str) -> str | None:
    stop = time.monotonic() + seconds
    for name in sorted(ROUTER_WORKFLOWS, key=lambda name: name != first):
        workflow, settings = ROUTER_WORKFLOWS[name]
        try:
            RouterSweep(PLANS, until_s=stop).run(workflow, settings)
        except (Exception, OrderViolation) as error:
            return f"{name}: {type(error).__name__}: {error}"
        if time.monotonic() > stop:
            break
    return None


def search_chains(seconds: float, _first: str) -> str | None:
    stop = time.monotonic() + seconds
    seed = 0
    while time.monotonic() < stop:
        try:
            chain_history(seed)
        except (Exception, OrderViolation) as error:
            return f"seed {seed}: {type(error).__name__}: {error}"
        seed += 1
    return None


def search_wholes(seconds: float, first: str) -> str | None:
    """Histories of the theme `first`, or of any: as many of them on a machine that is busy."""
    stop, patience = time.process_time() + seconds, time.monotonic() + WAITED_S_MAX
    for seed in itertools.count():
        if time.process_time() > stop or time.monotonic() > patience:
            break
        if not first or mood_of(seed).theme == first:
            broken = whole_failure(seed)
            if broken is not None:
                return f"seed {seed}: {type(broken).__name__}: {broken}"
    return None


def search_stages(seconds: float, first: str) -> str | None:
    stop = time.monotonic() + seconds
    for name in sorted(STAGE_WORKFLOWS, key=lambda name: name != first):
        try:
            StageSweep(PLANS).run(*STAGE_WORKFLOWS[name])
            for seed in range(8):
                stage_history(seed)
                run_late_history(seed)
        except (Exception, OrderViolation) as error:
            return f"{name}: {type(error).__name__}: {error}"
        if time.monotonic() > stop:
            break
    return None


def search_classes(seconds: float, first: str) -> str | None:
    """Histories of the theme `first`, or of any: as many of them on a machine that is busy."""
    stop, patience = time.process_time() + seconds, time.monotonic() + WAITED_S_MAX
    for seed in itertools.count():
        if time.process_time() > stop or time.monotonic() > patience:
            break
        if first and theme_of(seed) != first:
            continue
        try:
            run_class_history(seed)
        except (Exception, OrderViolation) as error:
            return f"seed {seed}: {type(error).__name__}: {error}"
    return None


def search_buckets(seconds: float, first: str) -> str | None:
    stop = time.monotonic() + seconds
    try:
        if first == "sweep":
            bucket_sweep("disk", ("lose-all",))
        for seed in itertools.count():
            if time.monotonic() > stop:
                break
            bucket_history(seed)
    except (Exception, OrderViolation) as error:
        return f"{type(error).__name__}: {error}"
    return None


def search_backups(seconds: float, first: str) -> str | None:
    stop = time.monotonic() + seconds
    try:
        if first == "sweep":
            crash_backups(PLANS)
            crash_restores(PLANS, is_moment=True)
        if first == "tears":
            for seed in range(40):
                run_tear(seed)
        for seed in itertools.count():
            if time.monotonic() > stop:
                break
            backup_history(seed, steps=25, restores=2)
    except (Exception, OrderViolation) as error:
        return f"{type(error).__name__}: {error}"
    return None


SEARCHES = {
    "log": search, "queue": search_queues, "router": search_routers, "chain": search_chains,
    "whole": search_wholes, "stage": search_stages, "kv": search_buckets,
    "backup": search_backups, "class": search_classes,
}  # fmt: skip

if __name__ == "__main__":
    found = SEARCHES[sys.argv[2]](float(sys.argv[1]), sys.argv[3])
    print(found)
    sys.exit(FOUND if found else 0)
