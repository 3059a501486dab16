"""Access control: who may send which request. Identities, roles and their file are here; ``server`` and ``admin`` ask."""
