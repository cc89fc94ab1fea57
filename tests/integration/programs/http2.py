# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 frames by hand (RFC 9113, RFC 7541), to send a coordinator what no client would."""

import socket
import ssl
import struct

import harness

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def text(value):
    """A string literal without Huffman's code; below 127 bytes its length is one byte."""
    raw = value.encode() if isinstance(value, str) else value
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    length, rest = b"\x7f", len(raw) - 127
    while rest >= 128:
        length += bytes([rest % 128 + 128])
        rest //= 128
    return length + bytes([rest]) + raw


def header(name, value):
    return b"\x00" + text(name) + text(value)


def call(path, stream, more=b"", end=False):
    """The headers of a gRPC call."""
    block = (b"\x83\x86\x04" + text(path) + b"\x01" + text("a") + header("te", "trailers")
             + header("content-type", "application/grpc") + more)
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)


def message(payload, stream, end=True, length=None):
    """A gRPC message; `length` lies about how long it is."""
    body = struct.pack(">BI", 0, len(payload) if length is None else length) + payload
    return frame(DATA, END_STREAM if end else 0, stream, body)


class Connection:
    """One connection that has said the preface."""

    def __init__(self, address, preface=True, tls=None):
        self.drained = 0
        timeout = harness.LEAST_SECONDS * harness.PATIENCE
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(address.removeprefix("unix:"))
        else:
            host, port = address.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        if preface:
            self.send(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, data):
        self.socket.sendall(data)

    def drain(self):
        """Throws away what has come, without waiting, and counts it. False: the other end has closed."""
        self.socket.setblocking(False)
        try:
            while True:
                piece = self.socket.recv(1 << 16)
                if not piece:
                    return False
                self.drained += len(piece)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        finally:
            self.socket.settimeout(harness.LEAST_SECONDS * harness.PATIENCE)

    def read_to_end(self):
        """All that comes until the other end closes."""
        data = b""
        try:
            while True:
                piece = self.socket.recv(1 << 16)
                if not piece:
                    return data
                data += piece
        except (ConnectionError, ssl.SSLError):
            return data

    def status_of(self, stream):
        """The payload of the frame that ends the stream."""
        data = b""
        while True:
            while len(data) >= 9:
                size = int.from_bytes(data[:3], "big")
                if len(data) < 9 + size:
                    break
                kind, flags, of = data[3], data[4], int.from_bytes(data[5:9], "big")
                payload, data = data[9:9 + size], data[9 + size:]
                if of == stream and (kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM)):
                    return payload
                if kind == GOAWAY:
                    return payload
            piece = self.socket.recv(1 << 16)
            if not piece:
                return b"closed"
            data += piece

    def close(self):
        self.socket.close()
