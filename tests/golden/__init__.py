"""Golden transcripts: scripts of what happens to a cluster, each with everything that its nodes then do.

``pytest tests/golden`` runs every ``raft/*.txt`` and ``routes/*.txt`` against the code that ships and compares the output.
``pytest tests/golden --rewrite`` writes the present output into the files instead; review the difference before you commit it.
README.md has the format, the commands and how to add a story or a command.
"""
