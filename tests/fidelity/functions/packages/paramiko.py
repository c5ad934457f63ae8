"""Keys. There is no server."""

import io

import paramiko

KEY = paramiko.ECDSAKey.generate(bits=256)


def work():
    signed = KEY.sign_ssh_data(b"data")
    signed.rewind()
    return [KEY.verify_ssh_sig(b"data", signed), KEY.get_name(), paramiko.Message(b"\0\0\0\1a").get_text()]


def random():
    return paramiko.ECDSAKey.generate(bits=256).get_base64()


def fail():
    paramiko.RSAKey.from_private_key(io.StringIO("no key"))
