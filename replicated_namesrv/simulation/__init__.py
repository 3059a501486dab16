"""The code that ships, in a seeded world of faults: virtual clock, network, disks and processes that can fail in every way.

A run is a function of its seed: same seed, same trace digest, on any machine. ``subjects`` says what can be put into the world,
``application`` what runs on it, ``invariants`` what must hold after every event; ``campaign`` runs many seeds.
"""
