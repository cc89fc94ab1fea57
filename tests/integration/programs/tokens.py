# SPDX-License-Identifier: Apache-2.0
"""What is in a token (coordinator/client/token.h), for tests that speak TLS themselves."""

import base64
import os
import ssl


def der(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def without_certificate(token):
    """The token as versions made it in which callers had no certificates."""
    _, *secret, authorities, _ = token.strip().split(".")
    return ".".join(["lockstep1", *secret, authorities])


def certificate_of(token, folder):
    """A file with the token's certificate and its key."""
    pair = der(token.strip().rsplit(".", 1)[1])
    size = int.from_bytes(pair[2:4], "big") + 4
    path = os.path.join(folder, f"certificate-{len(os.listdir(folder))}.pem")
    key = base64.encodebytes(pair[size:]).decode("ascii")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
        file.write(ssl.DER_cert_to_PEM_cert(pair[:size]))
        file.write(f"-----BEGIN EC PRIVATE KEY-----\n{key}-----END EC PRIVATE KEY-----\n")
    return path


def context(certificate=None):
    """Of a client that takes any server, and shows this certificate."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.set_alpn_protocols(["h2"])
    if certificate is not None:
        made.load_cert_chain(certificate)
    return made
