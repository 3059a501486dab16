"""Fault injection on running clusters through processes, sockets and files, and verdicts on the answers that clients got.

DESIGN.md beside this file describes the parts and defines the trace. Only the command line and ``spark`` import this package.
"""
