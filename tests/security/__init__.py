"""Attacks on running nodes, in both modes: each test fails on the version that docs/attacks.md names under "before"."""
