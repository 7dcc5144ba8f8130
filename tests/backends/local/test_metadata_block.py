"""What the four programs decide, on an interpreter; and what the kernel makes of them."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.backends.local.metadata_block import (
    BLOCKED_V4,
    BLOCKED_V6,
    Hook,
    attach,
    build_program,
    unified_root,
    why_unavailable,
)
from headstart.errors import BackendUnavailable

METADATA = ["169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "192.0.0.192", "168.63.129.16"]
METADATA_V6 = ["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"]


def allows(hook: Hook, address: IPv4Address | IPv6Address, port: int = 80, *, own_ports: tuple[int, ...] = ()) -> bool:
    """Interpret the program on one `struct bpf_sock_addr`."""
    context = bytearray(64)
    if isinstance(address, IPv4Address):
        context[4:8] = address.packed
    else:
        context[8:24] = address.packed
    context[24:26] = struct.pack("!H", port)
    registers = [0] * 11
    code = list(struct.iter_unpack("=BBhI", build_program(hook, own_ports=own_ports)))
    at = 0
    while True:
        operation, pair, offset, value = code[at]
        to, source, at = pair & 0xF, pair >> 4, at + 1
        match operation:
            case 0x61:
                assert source == 1, "only the context is loaded from"
                (registers[to],) = struct.unpack_from("=I", context, offset)
            case 0xBC:
                registers[to] = registers[source] & 0xFFFFFFFF
            case 0x54:
                registers[to] &= value
            case 0x56:
                at += offset if registers[to] != value else 0
            case 0xB7:
                registers[to] = value
            case 0x95:
                return registers[0] == 1
            case _:
                raise AssertionError(f"opcode {operation:#x}")


V4_HOOKS, V6_HOOKS = (Hook.CONNECT_V4, Hook.SEND_V4), (Hook.CONNECT_V6, Hook.SEND_V6)


@pytest.mark.parametrize("address", METADATA)
def test_known_metadata_addresses_are_denied(address: str) -> None:
    assert not any(allows(hook, IPv4Address(address)) for hook in V4_HOOKS)


@pytest.mark.parametrize("address", METADATA_V6)
def test_known_metadata_addresses_are_denied_over_ipv6(address: str) -> None:
    assert not any(allows(hook, IPv6Address(address)) for hook in V6_HOOKS)


def test_name_resolution_stays_possible_where_clouds_serve_it() -> None:
    assert allows(Hook.CONNECT_V4, IPv4Address("169.254.169.254"), port=53)
    assert not allows(Hook.CONNECT_V4, IPv4Address("169.254.169.254"), port=5300)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0"]
)
def test_our_own_port_is_denied_on_loopback_and_nowhere_else(address: str) -> None:
    parsed = ip_address(address)
    hooks, elsewhere = (V4_HOOKS, "192.0.2.7") if isinstance(parsed, IPv4Address) else (V6_HOOKS, "2001:db8::1")
    for hook in hooks:
        assert not allows(hook, parsed, 8787, own_ports=(8786, 8787))
        assert allows(hook, parsed, 8788, own_ports=(8786, 8787))
        assert allows(hook, ip_address(elsewhere), 8787, own_ports=(8786, 8787))
        assert allows(hook, parsed, 8787)


def test_metadata_stays_denied_beside_our_own_port() -> None:
    assert not allows(Hook.CONNECT_V4, IPv4Address("169.254.169.254"), 8787, own_ports=(8787,))
    assert not allows(Hook.CONNECT_V4, IPv4Address("169.254.169.254"), 80, own_ports=(8787, 53))


near_blocks = st.sampled_from([*BLOCKED_V4, *BLOCKED_V6]).flatmap(
    lambda network: st.integers(-3, min(network.num_addresses + 3, 2**16)).map(
        lambda offset: ip_address(max(int(network.network_address) + offset, 2**32 if network.version == 6 else 0))
    )
)


@given(st.ip_addresses() | near_blocks, st.integers(0, 65535).filter(lambda port: port != 53))
@settings(max_examples=400, deadline=None)
def test_an_address_is_denied_exactly_if_it_is_in_a_blocked_network(
    address: IPv4Address | IPv6Address, port: int
) -> None:
    if isinstance(address, IPv4Address):
        blocked, hooks = any(address in network for network in BLOCKED_V4), V4_HOOKS
    else:
        blocked, hooks = any(address in network for network in BLOCKED_V6), V6_HOOKS
    assert all(allows(hook, address, port) is not blocked for hook in hooks)


# ---------------------------------------------------------------- on this kernel


@pytest.fixture
def cgroup() -> Iterator[Path]:
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(f"metadata addresses cannot be blocked here: {reason}")
    root = unified_root()
    assert root is not None
    directory = root / f"headstart-test-{os.getpid()}"
    directory.mkdir()
    yield directory
    directory.rmdir()


def attempts(cgroup: Path | None) -> dict[str, str]:
    child = Path(__file__).with_name("metadata_child.py")
    done = subprocess.run(
        [sys.executable, str(child), str(cgroup or "none")], capture_output=True, text=True, timeout=60, check=False
    )
    if "unshare" in done.stderr:
        pytest.skip("no network namespace of our own to put the addresses in (CAP_SYS_ADMIN)")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_in_the_cgroup_no_way_leads_to_metadata_and_all_others_stay_open(cgroup: Path) -> None:
    attach(cgroup)
    told = attempts(cgroup)
    metadata = {name for name in told if name.split()[-1] in {*METADATA, *METADATA_V6} and not name.startswith("dns")}
    assert len(metadata) >= 30
    assert {told[name] for name in metadata} <= {"EPERM", "no mptcp here"}, told
    assert {told[name] for name in told.keys() - metadata} <= {"reached", "no mptcp here", "EINPROGRESS"}, told


def test_without_the_block_every_way_leads_there(cgroup: Path) -> None:
    told = attempts(cgroup)
    assert set(told.values()) <= {"reached", "no mptcp here", "EINPROGRESS"}, told


def test_our_own_port_is_refused_in_the_cgroup_only(cgroup: Path) -> None:
    attach(cgroup, own_ports=(80,))
    told = attempts(cgroup)
    assert {told[f"{kind} {address}"] for kind in ("tcp", "udp") for address in ("127.0.0.1", "::1")} == {"EPERM"}
    assert told["tcp 10.1.2.3"] == "reached"
    assert attempts(None)["tcp 127.0.0.1"] == "reached"


def test_attaching_twice_changes_nothing(cgroup: Path) -> None:
    attach(cgroup)
    attach(cgroup)
    assert attempts(cgroup)["tcp 169.254.169.254"] == "EPERM"


def test_those_below_the_cgroup_are_blocked_too(cgroup: Path) -> None:
    attach(cgroup)
    below = cgroup / "below"
    below.mkdir()
    try:
        assert attempts(below)["tcp 169.254.169.254"] == "EPERM"
    finally:
        below.rmdir()


def test_a_directory_that_is_no_cgroup_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=str(tmp_path)) as caught:
        attach(tmp_path)
    assert caught.value.hint


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="No such file"):
        attach(tmp_path / "nowhere")


def test_the_port_is_compared_in_network_order() -> None:
    assert socket.htons(53) == struct.unpack("=H", struct.pack("!H", 53))[0]
    assert allows(Hook.SEND_V6, IPv6Address("fd00:ec2::254"), port=53)
