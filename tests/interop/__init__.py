"""The product under unmodified RocketMQ peers of 5.3.3 and 4.9.7, from their own jars: brokers, clients, mqadmin."""
