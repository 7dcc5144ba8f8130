"""Decides: events in, instructions out.

Pure: no I/O, no clock, no randomness, no async. Above it, `runtime` turns instructions
into acts and acts into events; below it are only `errors` and `ids`.
"""
