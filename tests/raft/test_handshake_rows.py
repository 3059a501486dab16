"""Every row of the tables in transport.py has a test."""

import re

from replicated_namesrv.raft import transport
from tests.raft import test_asked_names, test_transport

HANDSHAKE_ROWS = {
    "H1": test_transport.test_connections_without_a_hello_are_bounded,
    "H2": test_transport.test_a_connection_without_a_hello_is_closed,
    "H3": test_transport.test_garbage_instead_of_a_hello,
    "H4": test_transport.test_a_stranger_is_turned_away_and_told_why,
    "H6": test_transport.test_a_recorded_hello_does_not_fit_another_connection,
    "H7": test_transport.test_tls_turns_away,
    "H5": test_transport.test_a_node_that_is_dialled_by_another_name_tells_its_own,
    "H10": test_asked_names.test_a_node_tells_its_name_only_to_a_peer,
    "H8": test_transport.test_a_second_process_of_a_node_is_turned_away_and_both_sides_say_so,
    "H9": test_transport.test_a_newer_connection_replaces_the_older,
    "D1": test_transport.test_the_dialler_judges_the_acceptor,
    "D2": test_transport.test_a_second_process_of_a_node_is_turned_away_and_both_sides_say_so,
    "D6": test_transport.test_a_node_that_is_dialled_by_another_name_tells_its_own,
    "D3": test_transport.test_the_dialler_judges_the_acceptor,
    "D4": test_transport.test_the_dialler_judges_the_acceptor,
    "D5": test_transport.test_the_dialler_judges_the_acceptor,
    "F1": test_transport.test_a_frame_that_is_too_long_closes_the_connection,
    "F2": test_transport.test_a_newer_connection_replaces_the_older,
    "F3": test_transport.test_a_frame_that_was_tampered_with_closes_the_connection_and_is_not_delivered,
    "F4": test_transport.test_garbage_after_the_hello_closes_the_connection,
    "F5": test_transport.test_messages_pass_in_order_both_ways,
}
"""The test of each row of the tables in transport.py."""


def test_every_row_of_the_handshake_has_a_test() -> None:
    rows = re.findall(r"^\| ([HDF]\d+) +\|", transport.__doc__ or "", flags=re.MULTILINE)
    assert rows == list(HANDSHAKE_ROWS)
