"""Sandboxes from what the Linux kernel has: namespaces, a private root, cgroups, seccomp.

Above it: the composition root, which picks a backend. Below it: `backends.contract`.
"""
