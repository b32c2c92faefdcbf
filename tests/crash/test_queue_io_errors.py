"""A disk that fails under a queue: what was refused has not happened, what is unknown may have.

The workflows of the crash sweep, with an error at each mutating call in turn. Behind a full disk
the queue goes on as if it had not been asked; behind any other error the process ends, and what the
next one finds is the state before the call or the one behind it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.crash.harness.lease_model import LeaseModel
from tests.crash.harness.log_harness import LOSE_ALL, deterministic
from tests.crash.harness.queue_harness import QueueRun
from tests.crash.harness.queue_sweep import check_image
from tests.crash.harness.queue_workflows import WORKFLOWS
from topics.errors import DiskFull, OutcomeUnknown, Poisoned, StorageError

NAMES = ("life", "life_not_durable", "failing", "failing_in_one_shard")
Tally = Callable[..., None]


class Fault:
    """Fails the call with this number, of those made while it is set."""

    def __init__(self, number: int, code: int) -> None:
        self.left = number
        self.code = code
        self.struck = ""

    def __call__(self, _index: int, call: str, path: str) -> None:
        self.left -= 1
        if self.left == -1:
            self.struck = f"{errno.errorcode[self.code]} in {call} of {path}"
            raise OSError(self.code, "injected", path)


def clean_states(name: str) -> list[LeaseModel]:
    """The model before each step, and behind the last one."""
    new, steps = WORKFLOWS[name]
    with deterministic(1):
        run = new()
        states = [run.model.copy()]
        for step in steps:
            step(run)
            states.append(run.model.copy())
    return states


def run_with(name: str, fault: Fault, states: list[LeaseModel]) -> int:
    """Runs a workflow into a fault and checks what is left; how many outcomes were unknown."""
    new, steps = WORKFLOWS[name]
    with deterministic(1):
        run = new()
        run.disk.on_mutation, run.disk_fails = fault, True
        for number, step in enumerate(steps):
            try:
                step(run)
            except (DiskFull, StorageError, OutcomeUnknown) as error:
                if isinstance(error, Poisoned | OutcomeUnknown):
                    run.model = states[number + 1]
                    _check_unknown(run, states[number])
                    return 1
                run.verify()
        run.disk.on_mutation = None
        run.verify()
        run.drain()
    return 0


def _check_unknown(run: QueueRun, before: LeaseModel) -> None:
    run.disk.on_mutation = None
    check_image(run, run.disk.crashed(LOSE_ALL), "crash", before)
    check_image(run, run.disk.kill(), "kill", before)


def swept(name: str, code: int, every: int, tally: Tally) -> None:
    states = clean_states(name)
    cases = unknown = number = 0
    try:
        while True:
            fault = Fault(number, code)
            unknown += run_with(name, fault, states)
            if not fault.struck:
                break
            cases += 1
            number += every
    except Exception as error:
        tally(io_errors_broken=1)
        raise AssertionError(f"call {number}, {fault.struck}: {error}") from error
    finally:
        tally(
            io_error_cases=cases, io_error_cases_all=cases, io_error_calls=number,
            io_errors_unknown=unknown,
        )  # fmt: skip
    assert cases > 30 // every


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", NAMES)
def test_a_queue_on_a_failing_disk_keeps_its_promises(name: str, code: int, tally: Tally) -> None:
    swept(name, code, 3, tally)


@pytest.mark.full
@pytest.mark.timeout(0)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", NAMES)
def test_a_queue_on_a_disk_that_fails_anywhere_keeps_its_promises(
    name: str, code: int, tally: Tally
) -> None:
    swept(name, code, 1, tally)
