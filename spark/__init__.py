"""Analysis of recorded traces with Spark, from files alone. Imported by the command line alone. Empty so far."""
