"""The commands ``namesrv`` and ``mqnamesrv``."""
