"""Analysis of recorded runs with Spark: it turns traces into tables and a report. Only the command line imports it; see
DESIGN.md.
"""
