"""Access control: policy, file, signatures, audit log."""
