"""Pages, scenarios, docstrings, comments and messages use the field's words (CONTRIBUTING.md, rules for text)."""

import io
import re
import tokenize

from tests.packaging.tree import LINKED, ROOT, tracked_files

INSTEAD = {
    r"(?:is|are|was|were|been|be) told\b": "notify",
    r"\bheard (?:of|from)\b": "last contact, received",
    r"\bled no longer\b": "step down",
    r"\bforgiv\w+": "extend the time-out",
    r"\bcomes of\b": "result from",
    r"\b(?:stands? still|stood still)\b": "stall",
    r"\bwhoever\b": "name the subject",
    r"\blooked into\b": "observe",
    r"\bnobody knows\b": "unknown",
    r"\bsigns? of life\b": "last contact",
    r"\bfor want of\b": "for lack of",
    r"\bbroken off\b": "interrupted",
}
"""A phrase that readers stopped at, and the word to use."""
RULES = "CONTRIBUTING.md"
"""This page quotes the phrases."""


def texts(name: str, content: str) -> list[tuple[int, str]]:
    """(line, text) of all lines of a page or scenario, or of the comments and strings of a module."""
    if not name.endswith(".py"):
        return list(enumerate(content.splitlines(), 1))
    kinds = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    return [
        (token.start[0] + at, line)
        for token in tokenize.generate_tokens(io.StringIO(content).readline)
        if token.type in kinds
        for at, line in enumerate(token.string.splitlines())
    ]


def test_texts_use_the_words_of_the_field() -> None:
    names = [path.as_posix() for path in tracked_files()]
    names = [name for name in names if name != RULES and (name.endswith((".md", ".toml")) or is_of_the_product(name))]
    wrong = []
    for name in names:
        content = (ROOT / name).read_text(encoding="utf-8")
        for phrase, word in INSTEAD.items():
            if re.search(phrase, content, re.IGNORECASE):  # few files are worth the time of the tokenizer
                wrong += [
                    f"{name}:{line}: '{found[0]}': write '{word}'"
                    for line, text in texts(name, content)
                    if (found := re.search(phrase, text, re.IGNORECASE))
                ]
    assert not wrong, "\n".join(wrong)


def is_of_the_product(name: str) -> bool:
    """Whether it is a Python file of the product, under its own name."""
    return name.endswith(".py") and name.split("/")[0] in ("replicated_namesrv", *LINKED)
