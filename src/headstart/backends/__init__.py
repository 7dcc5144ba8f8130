"""Kinds of isolation behind one contract.

Above them is `runtime`; below them are `core`'s words. `local` and `process` do not know
each other; both stand on `zygote`, and all of them on `contract`.
"""
