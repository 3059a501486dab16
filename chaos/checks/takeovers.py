"""The check that a broker keeps the name and id that it has taken over.

In some groups, the master sends a registration and dies silently. Then another broker registers under its name and id. A copy of
the master's registration may reach the log after that. A cluster does not apply a registration that a node received before
another address took over the name and id.
"""

from replicated_namesrv.chaos.checks.final import is_received
from replicated_namesrv.chaos.checks.registration_history import Late
from replicated_namesrv.chaos.checks.story import CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.recorded_brokers import HEIR

TAKEOVERS = "brokers keep what they took over"


def check_takeovers(story: Story) -> CheckResult:
    """After a broker has taken over the id of a master, no node lists the former master.

    Left out: groups in which a node may not have received the last registration of the former master in time."""
    wrong: list[str] = []
    looked_at = left_out = 0
    reads = [op for op in story.of_kind("roles") if op.ok and op.key.startswith(HEIR)]
    copies = [op for op in story.ops if op.kind == "register-copy" and op.key.startswith(HEIR)]
    for group in sorted({op.key for op in reads}):
        former = f"{group}/0"
        taken = [op for op in copies if op.key == former and op.client != former]
        done = [op.end_ns for op in taken if op.ok]
        if not done:
            continue
        begun_ns, done_ns = min(op.start_ns for op in taken), min(done)
        unanswered = [op for op in copies if op.client == former and (not op.ok or op.end_ns > begun_ns)]
        may_come = not all(op.outcome == "fail" or is_received(story, Late(op, op.start_ns, begun_ns)) for op in unanswered)
        for read in (op for op in reads if op.key == group and op.start_ns > done_ns):
            looked_at += not may_come
            left_out += may_come
            if not may_come and any(name == former for name, _ in read.members):
                wrong.append(_told(story, read, former, done_ns))
    exempt = {"answers about groups whose former master may register late": left_out}
    return result(TAKEOVERS, Promise.CP, looked_at, wrong, exempt)


def _told(story: Story, read: Op, former: str, done_ns: int) -> str:
    return f"{story.ms(read.start_ns)}: {read.node} lists {former}, which another broker had replaced at {story.ms(done_ns)}"
