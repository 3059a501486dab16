"""Which brokers live: what a node knows of its brokers, what it tells the leader, and what the leader concludes."""
