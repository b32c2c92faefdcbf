"""`topics kv`: the key-value store."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import msgspec
import typer

from topics.cli import exits, server
from topics.client import kv_calls, kv_follow
from topics.errors import InvalidRequest, KeyNotFound
from topics.storage.fs import shown

group = typer.Typer(no_args_is_help=True, help="Put, get, list and delete keys of a bucket.")
Bucket = Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Only keys that begin with this.")]
IfSeq = Annotated[
    int | None,
    typer.Option("--if-seq", min=0, help="Only if the live version is this one; 0: there is none."),
]
AtSeq = Annotated[int | None, typer.Option("--at-seq", min=0, help="As of this seq.")]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="kv")


@group.command(context_settings={"ignore_unknown_options": True})
def put(
    bucket: Bucket,
    key: Key,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="JSON, or - to read it from standard input.")
    ],
    if_seq: IfSeq = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Set a key to a JSON value; the bucket is made where it is missing.

    Example: topics kv put profiles ada '{"born": 1815}'
    """
    text = sys.stdin.buffer.read() if value == "-" else os.fsencode(value)
    if (fault := server.json_fault(text)) is not None:
        raise InvalidRequest(f"the value is not JSON ({fault}); text is in quotes: '\"ada\"'")
    with server.connected(url, token) as client:
        raw = msgspec.Raw(text.strip())
        done = client.send(kv_calls.put_key(bucket, key, raw, if_seq=if_seq))
    if as_json:
        server.write_json(done)
    else:
        server.tell(f"{key} {'created' if done.created else 'set'} at {done.seq}")


@group.command()
def get(
    bucket: Bucket,
    key: Key,
    at_seq: AtSeq = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Print the value of a key. Exits 1 when it is not there.

    Example: topics kv get profiles ada
    """
    with server.connected(url, token) as client:
        found = client.send(kv_calls.get_key(bucket, key, at_seq=at_seq))
    if as_json:
        server.write_json(found)
    else:
        server.write_line(bytes(found.data).decode())


@group.command()
def delete(
    bucket: Bucket,
    key: Key,
    if_seq: IfSeq = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Delete a key. Exits 1 when it was not there.

    Example: topics kv delete profiles ada
    """
    with server.connected(url, token) as client:
        done = client.send(kv_calls.delete_key(bucket, key, if_seq=if_seq))
    if as_json:
        server.write_json(done)
    else:
        server.tell(f"{key} {'deleted' if done.deleted else 'was not there'}")
    if not done.deleted:
        raise typer.Exit(exits.NOT_SO)


@group.command()
def keys(
    bucket: Bucket,
    prefix: Prefix = "",
    at_seq: AtSeq = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Print the live keys in byte order, one a line.

    Example: topics kv keys profiles --prefix a
    """
    with server.connected(url, token) as client:
        client.bucket(bucket)
        found = client.kv(bucket).keys(prefix, at_seq=at_seq)
        if as_json:
            server.write_array(found)
            return
        for key in found:
            server.write_line(shown(key))


@group.command()
def scan(
    bucket: Bucket,
    prefix: Prefix = "",
    at_seq: AtSeq = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array, not lines.")] = False,
) -> None:
    """Print live keys with their values, a line of JSON each.

    Example: topics kv scan profiles | jq .value
    """
    with server.connected(url, token) as client:
        client.bucket(bucket)
        entries = client.kv(bucket).entries(prefix, at_seq=at_seq)
        found = (
            {"key": entry.key, "value": entry.data, "seq": entry.seq, "ts": entry.ts}
            for entry in entries
        )
        if as_json:
            server.write_array(found)
            return
        for entry in found:
            server.write_json(entry)


@group.command()
def history(
    bucket: Bucket,
    key: Key,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Show what is left of a key's past, oldest first. Exits 1 when nothing is.

    Example: topics kv history profiles ada
    """
    with server.connected(url, token) as client:
        found = client.kv(bucket).history(key)
    if not found:
        raise KeyNotFound("nothing is left of this key, or it never was", key=key)
    if as_json:
        server.write_json(found)
        return
    rows = [
        (each.seq, server.when(each.ts), "deleted" if each.deleted else bytes(each.data).decode())
        for each in found
    ]
    server.print_table(("seq", "time", "value"), rows)


@group.command("delete-range")
def delete_range(
    bucket: Bucket,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help='What to delete; "" is all.')],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Delete all keys that begin with a prefix, with one marker.

    Example: topics kv delete-range profiles tenant42: --yes
    """
    if not server.is_sure(f"Delete all keys of {bucket} that begin with {prefix!r}?", yes):
        raise typer.Exit(exits.NOT_SO)
    with server.connected(url, token) as client:
        done = client.send(kv_calls.delete_prefix(bucket, prefix))
    if as_json:
        server.write_json(done)
    else:
        server.tell(f"{server.counted(int(done.deleted), 'key')} deleted")


@group.command()
def compact(
    bucket: Bucket,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Markers older than this; else the bucket's grace."),
    ] = None,
    prefix: Prefix = "",
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Remove markers and versions that nobody needs any more.

    Example: topics kv compact profiles --max-age 1h
    """
    age_ms = None if max_age is None else server.duration_ms(max_age)
    with server.connected(url, token) as client:
        done = client.send(kv_calls.compact(bucket, max_age_ms=age_ms, prefix=prefix))
    if as_json:
        server.write_json(done)
        return
    kept = done.kept
    server.tell(
        f"{server.counted(done.removed_tombstones, 'marker')} and "
        f"{server.counted(done.removed_versions, 'version')} removed; kept "
        f"{kept.young} young, {kept.snapshots} for snapshots, {kept.readers} for readers"
    )


@group.command()
def stats(
    bucket: Bucket,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Show a bucket: keys, markers, who holds them.

    Example: topics kv stats profiles
    """
    with server.connected(url, token) as client:
        state = client.bucket(bucket)
    if as_json:
        server.write_json(state)
        return
    server.print_fields(
        [
            ("keys", state.size), ("markers", state.pending_tombstones),
            ("oldest marker", server.when(state.oldest_tombstone_ts)),
            ("bytes", server.amount(state.bytes)), ("head", state.head_seq),
            ("compacted", state.compacted_seq), ("snapshots", state.snapshots),
            ("history", state.config.history), ("grace_ms", state.config.grace_ms),
            *((f"{reader.kind} {reader.name}", reader.seq) for reader in state.readers),
        ]
    )  # fmt: skip


@group.command()
def follow(
    source_url: Annotated[str, typer.Argument(metavar="SRC_URL", help="The source's server.")],
    bucket: Bucket,
    into: Annotated[str, typer.Option("--into", metavar="BUCKET", help="The replica.")],
    source_token: Annotated[
        str | None, typer.Option(metavar="KEY", help="The API key there; else TOPICS_TOKEN.")
    ] = None,
    cursor: Annotated[
        str | None, typer.Option(help="The name of the follower's place in the source.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Until it has caught up.")] = False,
    url: server.Url = None,
    token: server.Token = None,
) -> None:
    """Keep a bucket a replica of one on another server.

    Example: topics kv follow http://primary:4000 profiles --into profiles
    """
    # Not at the top: of all commands here this one takes its time.
    from topics.cli.directory import progress_bar

    with (
        server.connected(source_url, source_token, server.PATIENT) as source,
        server.connected(url, token, server.PATIENT) as own,
        progress_bar("following") as progress,
    ):
        replica = kv_follow.Replica(bucket, into, cursor, progress)
        applied = kv_follow.follow(replica, source.kv(bucket), own.kv(into), until_caught_up=once)
    server.tell(f"{server.counted(applied, 'change')} applied")
