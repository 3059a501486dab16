"""Limits on what one address does."""

from replicated_namesrv.server.connection_limits import HANDSHAKES_PER_SECOND, KEPT_FOR_OTHER_ADDRESSES, Limits, Sources
from replicated_namesrv.settings import Settings


def test_tls_handshakes_of_an_address_are_limited_in_each_second() -> None:
    sources = Sources(Limits.of(Settings()))
    begun = [sources.may_handshake("192.0.2.1", 5.0 + n / 1000) for n in range(2 * HANDSHAKES_PER_SECOND)]
    assert begun == [True] * HANDSHAKES_PER_SECOND + [False] * HANDSHAKES_PER_SECOND
    assert sources.may_handshake("192.0.2.2", 5.9)
    assert sources.may_handshake("192.0.2.1", 6.0)


def test_an_address_leaves_room_for_others_unless_it_is_a_proxy() -> None:
    limits = Limits.of(Settings(proxy_protocol_from="10.0.0.0/8, 2001:db8::/32"))
    assert limits.connections_per_address == limits.connections - KEPT_FOR_OTHER_ADDRESSES
    assert Limits.of(Settings(max_connections=3)).connections_per_address == 3
    sources = Sources(limits)
    for address, admitted in (("192.0.2.1", False), ("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("2001:db8::1", True)):
        assert all(sources.admit(address) for _ in range(limits.connections_per_address))
        assert sources.admit(address) is admitted
        sources.leave(address)
        assert sources.admit(address)
