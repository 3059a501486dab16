"""Attacks on running nodes, in both modes: each test fails on the version that docs/security.md names under "before"."""
