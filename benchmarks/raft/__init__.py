"""Speed of the Raft core, beside plain PySyncObj and etcd on the same machine: ``python -m benchmarks.raft``."""
