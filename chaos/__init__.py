"""Faults on running clusters, from outside: processes, sockets and files. Imported by the command line alone. Empty so far."""
