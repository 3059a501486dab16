"""When name servers may remove a broker at the earliest. An earlier removal is a violation, even if the broker died.

    removal                                    not before
    as silent (cause ``expired``), CP          the time-out after the broker sent its last acknowledged registration, to any node
    as silent, AP                              the same for the registrations to the node that removes the broker
    of a broker whose connections closed, CP   ``connectionLossGraceMs`` after they closed
    of a broker whose connections closed, AP   they closed

A node counts silence from the time at which it accepted the registration, which is later. So these times hold on a slow machine,
too.
"""

from collections.abc import Iterable, Iterator

from replicated_namesrv.chaos.checks.story import BrokerState, Op, Story
from replicated_namesrv.chaos.records import ExpiryRecord

GRACE_MS = 500
"""Default of ``connectionLossGraceMs``."""


def early_removals(story: Story, told: Iterable[ExpiryRecord]) -> Iterator[str]:
    """The reported removals that came too early. Brokers that may have registered again before the report arrived are left
    out."""
    for expiry in told:
        life = story.life_at(expiry.broker, expiry.time_ns)
        if life is None or life.state not in ("silent", "dead", "exposed"):
            continue
        contact = last_contact(story, expiry.broker, expiry.time_ns, None if story.mode == "cp" else expiry.node)
        if expiry.cause == "lost" and life.state == "dead" and expiry.time_ns < _closed_until_ns(story, life):
            since_ns, what = life.start_ns, "its connections closed"
        elif expiry.cause == "expired" and contact is not None and contact.end_ns < life.start_ns:
            since_ns, what = contact.start_ns, f"its last contact; its time-out is {life.timeout_ns / 1e9:g} s"
            if expiry.time_ns >= since_ns + life.timeout_ns:
                continue
        else:
            continue
        after_s = (expiry.time_ns - since_ns) / 1e9
        yield f"{story.ms(expiry.time_ns)}: {expiry.node} dropped {expiry.broker} ({expiry.cause}) {after_s:.2f} s after {what}"


def earliest_removal_ns(story: Story, broker: str, gone: BrokerState) -> int:
    """When a CP cluster may remove a broker that died. A fault can close the connections of a silent broker, so this time is not
    after the beginning of a fault."""
    contact = last_contact(story, broker, gone.start_ns)
    if contact is None:
        return gone.start_ns
    kept_ns = contact.start_ns + gone.timeout_ns
    if gone.state == "dead":
        kept_ns = min(kept_ns, _closed_until_ns(story, gone))
    faults = story.faults_in(gone.start_ns, kept_ns)
    return max(gone.start_ns, min([kept_ns, *(fault.began_ns for fault in faults)]))


def _closed_until_ns(story: Story, gone: BrokerState) -> int:
    """The end of the period in which a broker is kept after its connections have closed."""
    return gone.start_ns + (story.setting_ms("connectionLossGraceMs", GRACE_MS) * 1_000_000 if story.mode == "cp" else 0)


def last_contact(story: Story, broker: str, before_ns: int, node: str | None = None) -> Op | None:
    """The last registration of a broker that ``node`` (None: any node) acknowledged before ``before_ns``."""
    copies = (op for op in story.copies_of(broker) if op.ok and op.end_ns < before_ns and node in (None, op.node))
    return max(copies, key=lambda op: op.start_ns, default=None)
