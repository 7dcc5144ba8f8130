"""Connections to model servers: HTTP/1.1 on httptools, pooled per upstream."""

from headstart.proxy.upstream.connection import ResponseHead, UpstreamBroke, UpstreamConnection
from headstart.proxy.upstream.dialling import Dialler, ProxyRefused
from headstart.proxy.upstream.pool import ConnectionPool, PoolFull

__all__ = [
    "ConnectionPool",
    "Dialler",
    "PoolFull",
    "ProxyRefused",
    "ResponseHead",
    "UpstreamBroke",
    "UpstreamConnection",
]
