"""The lines that sum up the suites: what was covered, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.support.fault_kinds import KINDS


def lines(totals: Counter[str], images: int, kinds: Sequence[str]) -> Iterator[str]:
    if images:
        yield (
            f"crash sweep: {totals['workflows']} workflows, "
            f"{totals['crash_points']} mutating calls, {images} distinct crash states, "
            f"{totals['recoveries']} recoveries, "
            f"{totals['records_checked']} acknowledged records checked; acknowledged fsync records "
            f"lost {totals['lost']}, deleted resurrected {totals['resurrected']}, "
            f"unexplained holes {totals['unexplained']}, other broken promises {totals['other']}"
        )
    if totals["histories"] or totals["predicted"]:
        yield (
            f"seeds: {totals['histories']} random histories ({totals['histories_failed']} failed), "
            f"{totals['workloads']} random workloads crashed everywhere "
            f"({totals['workloads_failed']} failed), {totals['predicted']} histories of the state "
            f"machine ({totals['predicted_failed']} seeds failed)"
        )
    if totals["whole_histories"]:
        yield (
            f"whole histories: {totals['whole_histories']} seeds "
            f"({totals['whole_failed']} failed), {totals['whole_steps']} steps, "
            f"{totals['whole_clean_stops']} orderly stops, {totals['whole_kills']} kills, "
            f"{totals['whole_crashes']} machine crashes, {totals['whole_poisoned']} failed syncs, "
            f"{totals['whole_bad_starts']} starts cut short or failing "
            f"({totals['whole_refused_starts']} refused), {totals['whole_starts']} good ones, "
            f"{totals['whole_records']} records read"
        )
    if totals["lease_histories"]:
        yield f"lease histories: {totals['lease_histories']} seeds"
    if totals["io_error_cases"]:
        yield (
            f"I/O errors: {totals['io_error_cases']} of {totals['io_error_cases_all']} cases over "
            f"{totals['io_error_calls']} calls, {totals['io_errors_unknown']} unknown outcomes, "
            f"{totals['io_errors_broken']} broken promises"
        )
    if totals["corruption_cases"]:
        yield (
            f"corruption: {totals['corruption_cases']} damaged images: "
            f"{totals['corruption_refused']} refused, {totals['corruption_exact']} served exactly, "
            f"{totals['corruption_torn']} taken for a torn end (only the last unmarked group)"
        )
    if totals["kills"]:
        yield (
            f"killed processes: {totals['kills']} kills, {totals['kill_records']} acknowledged "
            f"records checked, all there"
        )
    if totals["soak_kills"]:
        yield (
            f"killed servers: {totals['soak_kills']} kills ({totals['soak_kills_recovering']} "
            f"during recovery, {totals['soak_power_failures']} with all that was unsynced), "
            f"{totals['soak_acks']} requests answered, "
            f"{totals['soak_records']} acknowledged records and {totals['soak_deleted']} deleted "
            f"ones checked, {totals['soak_unknown']} unknown outcomes "
            f"({totals['soak_unknown_there']} were there), {totals['soak_copies']} copies of "
            f"routers checked ({totals['soak_copies_again']} forwarded again where allowed), all "
            "as they were acknowledged"
        )
    if totals["pipeline_lives"]:
        yield (
            f"pipelines: {totals['pipeline_lives']} starts after {totals['pipeline_kills']} kills "
            f"and {totals['pipeline_stops']} stops, {totals['pipeline_store_failures']} calls that "
            f"the store failed, {totals['pipeline_acks']} requests answered; "
            f"{totals['pipeline_records']} records, {totals['pipeline_deleted']} deleted ones, "
            f"{totals['pipeline_copies']} copies and {totals['pipeline_jobs']} jobs checked "
            f"({totals['pipeline_rejected']} rejected by a full queue), all as they should be"
        )
    if totals["visits_of_a_kind"] or totals["abuse_seconds"]:
        yield (
            f"visits: {totals['visits_of_a_kind']} of every kind, and "
            f"{totals['abuse_seconds']} s of abuse, without a trace in memory"
        )
    if totals["abuse_calls"]:
        yield (
            f"abuse: {totals['abuse_calls']} calls of a bystander, p99 {totals['abuse_us']} us "
            f"({totals['abuse_idle_us']} us when idle), memory {totals['abuse_first_kib']} KiB "
            f"when warm, {totals['abuse_kib']} KiB at most"
        )
    if totals["queue_kills"]:
        yield (
            f"killed queues: {totals['queue_kills']} kills among 50 workers, "
            f"{totals['queue_jobs']} jobs, {totals['queue_deliveries']} deliveries, "
            f"{totals['queue_unanswered']} acknowledgements without an answer; "
            f"jobs lost {totals['queue_lost']}, "
            f"acknowledged and delivered again {totals['queue_redelivered']}"
        )
    if totals["mutants"]:
        yield f"planted bugs: {totals['mutants_caught']} of {totals['mutants']} caught"
    if images and kinds:
        missing = sorted(KINDS.keys() - set(kinds))
        yield f"fault kinds: {len(kinds)} of {len(KINDS)} exercised; not: {', '.join(missing)}"
    if totals["fault_schedules"]:
        yield (
            f"clients: {totals['fault_schedules']} schedules with {totals['client_faults']} faults "
            "on the way to the server, nothing doubled, nothing missed, no job lost"
        )
    if totals["fuzz_requests"]:
        yield (
            f"generated requests: {totals['fuzz_requests']} over "
            f"{totals['fuzz_operations'] // totals['fuzz_runs']} operations, "
            f"{totals['fuzz_failures']} not answered as documented, "
            f"{totals['fuzz_rules']} refused by a rule that a schema can not say"
        )
    yield from bad_input(totals)


def bad_input(totals: Counter[str]) -> Iterator[str]:
    """The table of bad input: how many cells each route has, by the code that refused them."""
    by_route: dict[str, Counter[str]] = {}
    for name, count in totals.items():
        if name.startswith("bad_input "):
            _, method, path, code = name.split()
            by_route.setdefault(f"{method} {path}", Counter())[code] += count
    if not by_route:
        return
    cells = sum(sum(codes.values()) for codes in by_route.values())
    yield (
        f"bad input: {cells} cells on {len(by_route)} routes refused with their code, state "
        "unchanged after each route"
    )
    for route, codes in sorted(by_route.items()):
        shown = ", ".join(f"{code} {count}" for code, count in codes.most_common())
        yield f"  {route:44} {sum(codes.values()):4}  {shown}"
