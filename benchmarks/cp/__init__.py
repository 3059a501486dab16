"""Speed of a replicated cluster, beside an independent node in the same run: ``python -m benchmarks.cp --help``."""
