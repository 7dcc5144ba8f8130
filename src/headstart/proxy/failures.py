"""What a client is told when its upstream gives no response: what, where, the way there, and the cure."""

from __future__ import annotations

from headstart.config.model import ForwardProxy
from headstart.proxy.refusals import Refusal
from headstart.proxy.routes import UpstreamTarget
from headstart.proxy.upstream import PoolFull, ProxyRefused, UpstreamBroke

__all__ = ["NoResponse", "refusal_of"]

NoResponse = OSError | PoolFull | ProxyRefused | UpstreamBroke


def refusal_of(upstream: UpstreamTarget, exc: NoResponse) -> Refusal:
    """Tell why there is no response."""
    told = f"the upstream {upstream.prefix!r} ({upstream.shown_url})"
    through = "" if upstream.proxy is None else f" through the proxy {upstream.proxy.shown}"
    match exc:
        case PoolFull():
            message = f"{told} cannot be reached: {exc}"
            return Refusal(status=503, code="upstream_full", message=message, hint="wait for other requests to end")
        case UpstreamBroke():
            hint = "look at the model server's log; the request can be sent again"
            message = f"{told} sent no response{through}: {exc}"
            return Refusal(status=502, code="upstream_broke", message=message, hint=hint)
        case ProxyRefused():
            message = f"{told} cannot be reached{through}: {exc}"
            hint = _cure(upstream, exc.status)
            return Refusal(status=502, code="upstream_proxy_refused", message=message, hint=hint)
        case OSError():
            why = str(exc) or ("it did not answer in time" if isinstance(exc, TimeoutError) else type(exc).__name__)
            message = f"{told} cannot be reached{through}: {why}"
            return Refusal(status=502, code="upstream_unreachable", message=message, hint=_cure(upstream, None))


def _cure(upstream: UpstreamTarget, status: int | None) -> str:
    if upstream.proxy is None:
        return f"start the model server, or correct the base URL of `{upstream.prefix}` in headstart.toml"
    if status == 407:
        return _right_credentials(upstream.proxy)
    directly = (
        f'{upstream.prefix} = {{ url = "{upstream.shown_url}", proxy = "none" }} under [upstreams] goes there directly'
    )
    return f"correct the proxy ({upstream.proxy.source}), or have it let this upstream through; {directly}"


def _right_credentials(proxy: ForwardProxy) -> str:
    wrong = "" if proxy.credentials is None else "other "
    return f"give the proxy {wrong}credentials: http://user:password@{proxy.host}:{proxy.port} ({proxy.source})"
