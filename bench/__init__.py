"""Benchmarks: one command, figures beside their targets, ratios rather than boasts."""
