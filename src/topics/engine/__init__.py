"""The rules of the log: one state machine driven by calls, a clock and a filesystem."""
