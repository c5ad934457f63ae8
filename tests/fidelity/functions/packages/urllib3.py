"""A pool of connections of the module. Nothing listens on the port."""

import urllib3

POOL = urllib3.PoolManager(num_pools=2, retries=urllib3.Retry(2, backoff_factor=0))


def work():
    url = urllib3.util.parse_url("http://user@example.org:8080/a?b=c#d")
    return [url.host, url.port, url.query, POOL.connection_from_url("http://127.0.0.1:9/").port]


def fail():
    urllib3.util.parse_url("http://[::1:80/")
