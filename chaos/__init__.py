"""Faults on running clusters, from outside: processes, sockets and files; and verdicts on what their clients then saw.

DESIGN.md beside this file tells the parts apart and defines the trace. Imported by the command line alone.
"""
