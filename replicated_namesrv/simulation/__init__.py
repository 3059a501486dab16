"""Deterministic simulator: the shipped code with virtual clock, network and disks, and processes that fail in every way.

A run is a function of its seed: the same seed gives the same trace digest on any machine. ``subjects`` lists what can be
simulated, ``application`` what runs on the cluster, and ``invariants`` what is checked after every event; ``campaign`` runs
many seeds.
"""
