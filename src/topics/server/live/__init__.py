"""Streams: watch sessions over server-sent events, and the WebSocket.

Both tell a reader the same things in the same order; only the bytes around them differ. What is
told is decided in `engine.reading`; here is how a reader subscribes, resumes, is kept alive, falls
behind and leaves. `sessions` outlive their streams (`watch_stream`) and the server
(`session_store`); `watch_routes` makes them, `stream_routes` does without. A WebSocket
(`ws_routes`, with the commands of `ws_commands` and the publishes of `ws_publishing`) is one
connection and what it subscribed to.
"""
