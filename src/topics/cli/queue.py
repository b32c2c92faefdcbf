"""`topics queue`: jobs, by hand and by command."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from typing import Annotated

import typer

from topics.cli import exits, server
from topics.cli.sending import Files, Records, Sender, Text, lines_of
from topics.client.client import Client
from topics.client.values import Job
from topics.errors import Forbidden, NotAQueue, TopicNotFound

group = typer.Typer(no_args_is_help=True, help="Produce, claim and work through jobs.")
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
Node = Annotated[str, typer.Option(help="The worker's name.")]
Seqs = Annotated[list[int], typer.Argument(metavar="SEQ", help="The jobs.")]
LeaseIds = Annotated[
    list[str] | None, typer.Option("--lease-id", help="Only this delivery; one for each job.")
]
NODE = "topics-cli"


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="queue")


@group.command()
def produce(
    queue: Queue,
    files: Files = None,
    records: Records = False,
    text: Text = False,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Append lines of JSON as jobs; makes the queue if there is none.

    Example: echo '{"to": "ada"}' | topics queue produce mails
    """
    lines = lines_of(records=records, text=text)
    with server.connected(url, token, server.PATIENT) as client:
        _refuse_log(client, queue)
        sender = Sender(client, queue, lines, config={"type": "queue"})
        sender.run(files or ["-"], as_json=as_json)


def _refuse_log(client: Client, queue: str) -> None:
    """Jobs in a log would wait for ever. Whoever may not look has to know."""
    try:
        found = client.topic(queue, touch=False)
    except (TopicNotFound, Forbidden):
        return
    if found.queue is None:
        raise NotAQueue(f"{queue} is a log; nothing was written")


@group.command()
def claim(
    queue: Queue,
    count: Annotated[int, typer.Option("-n", "--max", min=1, help="At most so many.")] = 1,
    node: Node = NODE,
    lease: Annotated[str | None, typer.Option(metavar="TIME", help="Hold them so long.")] = None,
    wait: Annotated[str | None, typer.Option(metavar="TIME", help="Wait for one so long.")] = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Lease jobs and show them. Exits 1 when there is none.

    Example: topics queue claim mails -n 5 --lease 10m
    """
    with server.connected(url, token) as client:
        answer = client.claim(
            queue, node, count,
            lease_ms=None if lease is None else server.duration_ms(lease),
            wait_ms=None if wait is None else server.duration_ms(wait),
        )  # fmt: skip
    if as_json:
        server.write_json(answer)
    else:
        rows = [
            (job.seq, job.lease_id, server.when(job.deadline), job.deliveries,
             bytes(job.data).decode("utf-8", "replace"))
            for job in answer.claimed
        ]  # fmt: skip
        server.print_table(("seq", "lease", "until", "deliveries", "data"), rows)
    if not answer.claimed:
        raise typer.Exit(exits.NOT_SO)


@group.command()
def ack(
    queue: Queue,
    seqs: Seqs,
    node: Node = NODE,
    lease_id: LeaseIds = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Complete jobs that NODE holds. Exits 1 when it did not hold one.

    Example: topics queue ack mails 17 18
    """
    with server.connected(url, token) as client:
        answer = client.ack(queue, node, seqs, lease_ids=lease_id)
    if as_json:
        server.write_json(answer)
    _tell_settled("acknowledged", answer.acked, answer.skipped, node)


@group.command()
def nack(
    queue: Queue,
    seqs: Seqs,
    node: Node = NODE,
    lease_id: LeaseIds = None,
    delay: Annotated[str | None, typer.Option(metavar="TIME", help="Not before then.")] = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Give jobs back that NODE holds. Exits 1 when it did not hold one.

    Example: topics queue nack mails 17 --delay 5m
    """
    with server.connected(url, token) as client:
        delay_ms = None if delay is None else server.duration_ms(delay)
        answer = client.nack(queue, node, seqs, delay_ms=delay_ms, lease_ids=lease_id)
    if as_json:
        server.write_json(answer)
    _tell_settled("given back", answer.nacked, answer.skipped, node)


def _tell_settled(verb: str, count: int, skipped: list[int], node: str) -> None:
    server.tell(f"{count} {verb}")
    if skipped:
        server.tell(f"not held by {node}: {', '.join(map(str, skipped))}")
        raise typer.Exit(exits.NOT_SO)


@group.command(context_settings={"ignore_unknown_options": True})
def work(
    queue: Queue,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run.")],
    concurrency: Annotated[int, typer.Option("-c", min=1, help="Jobs at a time.")] = 1,
    node: Annotated[str | None, typer.Option(help="The worker's name; made up if none.")] = None,
    lease: Annotated[str, typer.Option(metavar="TIME", help="Hold each so long.")] = "30s",
    idle: Annotated[
        str | None, typer.Option(metavar="TIME", help="End when there was none for so long.")
    ] = None,
    url: server.Url = None,
    token: server.Token = None,
) -> None:
    """Run a command for each job: its data on standard input; exit code 0 acknowledges.

    Any other exit code gives the job back with a growing delay. SIGTERM and Ctrl-C let running
    commands end (exit code 0 and 130). TOPICS_JOB_SEQ and TOPICS_JOB_DELIVERIES are in the
    environment of the command.

    Example: topics queue work mails -c 4 -- ./send-mail --quiet
    """
    if shutil.which(command[0]) is None:
        raise typer.BadParameter(f"there is no command {command[0]!r}", param_hint="COMMAND")
    logging.getLogger("topics.worker").addFilter(_without_traceback)
    with server.connected(url, token, server.PATIENT) as client:
        # A worker waits for ever for a server that is away; one that never was is a mistake.
        server.meet(client)
    with server.connected(url, token) as client:
        worker = client.worker(
            queue, lambda job: _run(command, job), node=node, concurrency=concurrency,
            lease_ms=server.duration_ms(lease),
            idle_s=None if idle is None else server.duration_ms(idle) / 1000,
        )  # fmt: skip
        counts = worker.run()
    server.tell(f"{counts.done} done, {counts.failed} failed, {counts.lost} lost")
    if worker.was_interrupted:
        raise typer.Exit(exits.INTERRUPTED)


def _without_traceback(record: logging.LogRecord) -> bool:
    """A command that failed is no bug of ours."""
    record.exc_info = None
    return True


def _run(command: list[str], job: Job) -> None:
    more = {"TOPICS_JOB_SEQ": str(job.seq), "TOPICS_JOB_DELIVERIES": str(job.deliveries)}
    # Of its own group: Ctrl-C is for us, and lets the command end.
    done = subprocess.run(
        command, input=bytes(job.data), env=os.environ | more, check=False, start_new_session=True
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}")


@group.command()
def stats(
    queue: Queue,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Show what is ready, in flight, and dead, and who holds what.

    Example: topics queue stats mails
    """
    with server.connected(url, token) as client:
        state = client.topic(queue, touch=False)
        if state.queue is None:
            raise NotAQueue(f"{queue} is a log")
        held = client.leases(queue).leases
    if as_json:
        server.write_json({"topic": queue, **_counters(state.queue), "leases": held})
        return
    server.print_fields(list(_counters(state.queue).items()))
    if held:
        rows = [(one.seq, one.node, server.when(one.expires_ts), one.deliveries) for one in held]
        server.print_table(("seq", "node", "until", "deliveries"), rows)


def _counters(state: object) -> dict[str, int]:
    return {name: getattr(state, name) for name in ("ready", "in_flight", "dead_lettered")}
