"""The three processes of the proxy's bench: an upstream, a proxy, and a load generator.

Each runs as `python -m headstart.bench.proxy_load.<one> …`, so that what one costs is
not charged to another.
"""
