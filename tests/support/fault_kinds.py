"""The kinds of faults that a single machine knows, and the tests that meet each of them.

A kind counts as exercised when one of its tests passed in this run. One without tests is not
covered, and says so in the summary.
"""

from __future__ import annotations

_SWEEP = ("test_a_crash_anywhere_keeps_every_promise", "test_a_crash_anywhere_in_any_way")
_ANY_WAY = ("test_a_crash_anywhere_in_any_way",)
_ERRORS = (
    "test_a_failing_call_is_typed_and_recoverable",
    "test_every_failing_call_is_typed_and_recoverable",
)
_ROT = ("test_rot_is_refused_or_never_served", "test_much_rot_is_refused_or_never_served")
_KILLS = (
    "test_a_process_killed_under_load_loses_nothing_acknowledged",
    "test_a_process_killed_very_often_loses_nothing_acknowledged",
)

KINDS: dict[str, tuple[str, ...]] = {
    "write: EIO": _ERRORS,
    "write: ENOSPC": _ERRORS,
    "write: EDQUOT": _ERRORS,
    "write: EFBIG": _ERRORS,
    "write: short": _ERRORS,
    "write: torn sector": _SWEEP,
    "write: torn page": _ANY_WAY,
    "write: misdirected": _ROT,
    "write: stale bytes": ("test_groups_are_found_whole_or_not_at_all",),
    "sync: EIO, pages dropped": _ERRORS,
    "sync: EIO, pages persisted": _ERRORS,
    "sync: EIO, pages cached": _ERRORS,
    "sync: late ENOSPC": _ERRORS,
    "sync: lying": ("test_a_disk_that_lies_about_syncs_loses_but_does_not_deceive",),
    "sync: stalled": ("test_only_fsync_waits_for_the_disk",),
    "directory: create lost": _SWEEP,
    "directory: rename lost": _ANY_WAY,
    "directory: renames reordered": _ANY_WAY,
    "directory: unlink undone": _ANY_WAY,
    "directory: sync EIO": _ERRORS,
    "directory: sync unsupported": ("test_a_filesystem_without_directory_syncs_is_refused",),
    "read: EIO": _ERRORS,
    "read: bit flip": _ROT,
    "read: zero sector": _ROT,
    "read: truncation": _ROT,
    "read: ESTALE": _ERRORS,
    "open: EMFILE": _ERRORS,
    "open: ENFILE": _ERRORS,
    "open: EACCES": _ERRORS,
    "open: EROFS": _ERRORS,
    "open: missing": ("test_a_missing_segment_is_a_problem",),
    "open: second owner": ("test_a_second_process_is_refused",),
    "process: SIGKILL": _KILLS,
    "process: SIGTERM while draining": ("test_a_drain_answers_what_is_in_flight",),
    "process: kill inside recovery": _SWEEP,
    "process: MemoryError": ("test_a_write_without_memory_is_rejected_and_the_next_one_is_not",),
    "process: writer thread death": ("test_whoever_waits_for_a_sync_thread_that_fails_is_told",),
    "time: back": ("test_what_has_expired_stays_expired_when_the_clock_goes_back",),
    "time: forward": ("test_a_day_forward_expires_at_once_and_for_good",),
    "time: frozen": ("test_a_frozen_clock_expires_nothing",),
    "time: jump during sync": ("test_a_clock_that_jumps_during_a_sync_lowers_nothing",),
    "client: cut mid-append": ("test_what_was_cut_short_gets_no_answer_of_its_own",),
    "client: cut mid-stream": ("test_a_client_that_leaves_is_forgotten",),
    "client: stalled reader": ("test_a_client_that_never_reads_is_cut_off",),
    "client: duplicate retry": ("test_a_retry_gets_the_first_answer_and_appends_nothing",),
    "client: oversized or malformed body": ("test_a_body_announced_too_large_is_refused_unread",),
    "client: late acknowledgement": ("test_a_stale_token_is_skipped",),
}


def exercised(passed: set[str]) -> list[str]:
    """The kinds that tests of these names have met."""
    return [kind for kind, tests in KINDS.items() if passed.intersection(tests)]
