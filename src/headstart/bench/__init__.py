"""Measures: time, memory and CPU of what the other packages do, side by side with peers.

Only `cli` is above it. A bench returns a `BenchResult`; writing it down is the CLI's
business.
"""
