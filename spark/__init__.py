"""Analysis of recorded runs with Spark: traces in, tables and a report out. Imported by the command line alone; see DESIGN.md."""
