"""A protocol library: HTTP/1.1, HTTP/2 without TLS, server-sent events, WebSocket.

It knows no topic, no engine and no storage: an application is a function from a request to an
answer. Bounds are everywhere: on heads, bodies, unsent bytes, connections, and each connection's
share of a turn.
"""
