"""Streams: watch sessions over server-sent events, and the WebSocket.

Both tell a reader the same things in the same order; only the bytes around them differ. What is
told is decided in `engine.reading`; here is how a reader subscribes, resumes, is kept alive, falls
behind and leaves. `sessions` outlive their streams (`watch_routes`); a WebSocket (`ws_routes`, with
the commands of `ws_commands` and the publishes of `ws_publishing`) is one connection and what it
subscribed to.
"""
