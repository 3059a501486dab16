"""``--rewrite``: write what the nodes do now into the transcripts, instead of comparing it with them."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the present output into the transcripts of tests/golden")
