"""Code that runs inside foreign Python interpreters (CPython 3.8 and later), with their standard library alone.

`boot.py` is executed by path and loads this folder as the package `_headstart_zygote`,
so that nothing here can collide with a module of the program that it serves. The host
imports `wire` from here too: both ends speak through the same few lines.
"""
