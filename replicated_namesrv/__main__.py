"""``python -m replicated_namesrv`` runs the command ``namesrv``."""

import sys

from replicated_namesrv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
