"""A server and a client in one process, over the loopback interface."""

from concurrent import futures

import grpc


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request.upper())


def work():
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = channel.unary_unary("/a/b")(b"hello", timeout=10).decode()
    server.stop(None).wait()
    return [answer, str(grpc.StatusCode.OK)]


def fail():
    with grpc.insecure_channel("127.0.0.1:9") as channel:
        channel.unary_unary("/a/b")(b"hello", timeout=0.2, metadata=[("Upper", "x")])
