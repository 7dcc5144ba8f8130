"""Turns instructions into I/O: sandboxes, MCP links, catalogues, journal, traces, state.

The only place that acts. Above it, `gateway`, `proxy` and `api` hand in what they see;
below it, `core` decides and `backends` isolate.
"""
