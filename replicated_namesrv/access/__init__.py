"""Access control: the requests that each caller may send. Identities, roles and their file are here. ``server`` and ``admin`` use
them."""
