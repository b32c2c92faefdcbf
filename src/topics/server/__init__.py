"""The log over HTTP: a thin protocol layer, and the contract's routes above it.

One process, one event loop, one engine. `process` takes the directory's lock, listens, recovers in
slices of the loop and serves; on a signal it drains, and everything is durable when it ends.
`embedded` is a server without a door, for callers in the same process. The
rooms, from the bottom up; each knows only those below it:

    http      a protocol library: bytes in, requests out; answers in, bytes out. Knows no topic
    api       what is allowed on the wire: routes, keys, bodies, fields
    loop      drives the engine, once a turn; who waits for it, who is paced, who is fed
    routes    what is asked and answered once
    live      what stays: watch sessions, WebSockets
    queues    claims that wait, leases, /work streams

`app` makes one handler of all routes (origin, route, key, scopes, readiness, handler), `surface`
lists them, `config` is what the server was told at its start and `about` what each setting is for;
`tls` encrypts, and `reloading` reads keys and certificate again on a signal.
Only the loop's thread touches the engine; what blocks runs in a few named threads, which
docs/architecture.md lists.
"""
