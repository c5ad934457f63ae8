"""Functions with an initscript: one that knows nothing of it, and some that ask for its messages."""

import base64
import contextlib
import hashlib
import os
import socket
import sys

import boto3
import pilotlight
import urllib3

s3 = boto3.client("s3")


def objects(event, context):
    """Reads objects as on Lambda."""
    told = []
    for key in event["keys"]:
        response = s3.get_object(Bucket="photos", Key=key)
        body = hashlib.sha256(response["Body"].read()).hexdigest()
        told.append([response["ResponseMetadata"]["HTTPHeaders"].get("x-pilot-input"), body])
    return told


def messages(event, context):
    """All messages, and why one is missing."""
    told = {}
    for id in event["ids"]:
        try:
            view = pilotlight.init.recv_msg(id)
            told[id] = [view.readonly, base64.b64encode(view).decode()]
        except pilotlight.init.NoMessage as error:
            told[id] = str(error)
    return told


def by_call(event, context):
    """A message whose id follows from the arguments of a call."""
    return bytes(pilotlight.init.recv_msg(pilotlight.init.id_of(*event["arguments"]))).decode()


def connections(event, context):
    """What is asked over each connection that the script hands over, and the answer."""
    told = {}
    for id, address, text, size in event["ask"]:
        try:
            with pilotlight.init.get_conn(id, address) as connection:
                connection.sendall(text.encode())
                answer = b""
                while len(answer) < size and (part := connection.recv(size - len(answer))):
                    answer += part
                told[id] = answer.decode()
        except pilotlight.init.NoConnection as error:
            told[id] = str(error)
    return told


def early(event, context):
    """What came of the messages that it waited for, after it has told a server that it runs."""
    if "go" in event:
        with pilotlight.init.get_conn(9, event["go"]) as connection:
            connection.sendall(b"go")
            connection.recv(2)
    return {"messages": messages(event, context), "known": pilotlight.init.messages()}


def sends(event, context):
    """What came of each message to the script, and of those that it waited for, in their order: a list of [id, text, count] to send,
    and of ids to wait for. The text is repeated."""
    told = []
    for one in event["do"]:
        try:
            if isinstance(one, int):
                told.append(bytes(pilotlight.init.recv_msg(one)).decode())
            else:
                id, text, count = one
                pilotlight.init.send_msg(id, text.encode() * count)
                told.append("sent")
        except (pilotlight.init.NoMessage, pilotlight.init.NotSent) as error:
            told.append(str(error))
        if one == event.get("die_after"):
            os._exit(3)
    return told


def floods(event, context):
    """Writes to the socket of its script what no library would, until it cannot. What the script says then."""
    (sent,) = sys.modules["pilot_worker.inputs"].messages.values()
    connection = socket.socket(fileno=os.dup(sent.arriving._socket.fileno()))
    try:
        connection.sendall(bytes.fromhex(event["first"]))
        while True:
            connection.sendall(bytes.fromhex(event["then"]) * 1000)
    except ConnectionError:
        told = bytes(pilotlight.init.recv_msg(event["id"])).decode()
    with contextlib.suppress(pilotlight.init.NoMessage):
        pilotlight.init.recv_msg(99)  # until the script has ended
    return told


def queue(event, context):
    """Makes these calls of a queue as on Lambda: the message that was got, or of a sent one the id; and whether the server was asked."""
    client = boto3.client("sqs")
    told = []
    for call, arguments in event["calls"]:
        answer = getattr(client, call)(QueueUrl=event["queue"], **arguments)
        (message,) = answer.get("Messages") or [{}]
        if event.get("deletes") and message:
            client.delete_message(QueueUrl=event["queue"], ReceiptHandle=message["ReceiptHandle"])
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        told.append([headers.get("x-pilot-input"), message.get("Body") or answer.get("MessageId")])
    return told


def kept(event, context):
    """A connection that stays the worker's, as one of a database would."""
    global connection
    if "address" in event:
        connection = pilotlight.init.get_conn(0, event["address"])
    connection.sendall(event["text"].encode())
    return connection.recv(100).decode()


def web(event, context):
    """Asks a server as it would without an initscript."""
    told = []
    for method, url, body in event["ask"]:
        data = None if body is None else body.encode()
        answer = urllib3.request(method, url, body=data, retries=False, redirect=False)
        told.append([answer.status, answer.data.decode(), answer.headers.get("x-pilot-input")])
    return told
