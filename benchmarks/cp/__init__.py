"""Speed of a replicated cluster compared with an independent node in the same run: ``python -m benchmarks.cp --help``."""
