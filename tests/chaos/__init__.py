"""Tests of the chaos harness: its parts, its checkers on good and bad histories, and real runs."""
