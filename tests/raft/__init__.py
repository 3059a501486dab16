"""Tests of the Raft core, its log and its transport."""
