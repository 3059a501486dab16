"""One attempt of a run of a study, in a process of its own: ``python -m replicated_namesrv.chaos.study_worker STUDY RUN OUT``.

A process for each run keeps the memory and the failures of runs apart.
"""

import sys
from pathlib import Path

from replicated_namesrv.chaos.study_ledger import open_study
from replicated_namesrv.chaos.suite import execute
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.provision import ProvisionError

EXIT_FAILED, EXIT_INTERRUPTED = 2, 130


def main(arguments: list[str]) -> int:
    """Make the run in the folder OUT. Exit 0: it has a verdict. Errors are the last line of the output."""
    study, key, out = arguments
    try:
        plan = open_study(Path(study))
        run = next(run for run in plan.runs if run.key == key)
        execute(plan.run_plan(run), Path(out), lambda line: print(line, flush=True))
    except (NamesrvError, ProvisionError) as error:
        print(error, flush=True)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
