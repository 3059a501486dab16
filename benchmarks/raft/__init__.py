"""Speed of the Raft core compared with plain PySyncObj and etcd on the same machine: ``python -m benchmarks.raft``."""
