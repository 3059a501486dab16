"""The product under unmodified RocketMQ peers of 5.3.3, 4.9.7 and 5.5.0, from their own jars: brokers, clients, mqadmin."""
