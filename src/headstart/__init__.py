"""Headstart: the runtime between LLM agents and their tools.

The folders are the architecture, listed from the top; each may import what is below it:
`cli`, `bench`, `proxy`, `gateway`, `api`, `runtime`, `backends`, `core`, and at the
bottom `config`, `errors`, `ids`, `clock`.
"""

__version__ = "0.1.0"
