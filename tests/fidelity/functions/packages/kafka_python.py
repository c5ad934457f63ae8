"""Records. There is no broker."""

from kafka import KafkaProducer, TopicPartition
from kafka.errors import for_code
from kafka.partitioner.default import murmur2


def work():
    return [murmur2(b"key"), for_code(3).__name__, list(TopicPartition("a", 1))]


def fail():
    KafkaProducer(bootstrap_servers="127.0.0.1:9", api_version=(2, 5), acks="some", no_such_option=1)
