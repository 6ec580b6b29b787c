"""TLS in front of a server that speaks plain HTTP, on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import inspect
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["tls_front"]


@contextlib.contextmanager
def tls_front(port: int, folder: Path) -> Iterator[tuple[int, Path]]:
    """Terminate TLS in a thread of its own, and forward the bytes as they are.

    Args:
        port: the port of 127.0.0.1 to which they go.
        folder: for the key and the certificates.

    Yields:
        The port that speaks TLS, and the file of the certificate that its clients must trust.
    """
    ca_bundle, chain = _certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    front = _Front(port, context)
    thread = threading.Thread(target=asyncio.run, args=(front.serve(),), name="tls-front")
    thread.start()
    try:
        if not front.listens.wait(20) or front.port is None:
            raise OSError("the TLS front did not start")
        yield front.port, ca_bundle
    finally:
        front.stop()
        thread.join()


class _Front:
    def __init__(self, target: int, context: ssl.SSLContext) -> None:
        self.port: int | None = None
        self.listens = threading.Event()
        self._target = target
        self._context = context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)
            self.port = server.sockets[0].getsockname()[1]
        finally:
            self.listens.set()
        await self._end.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def stop(self) -> None:
        """End the thread; its connections are cut."""
        if self._loop is not None and self._end is not None:
            with contextlib.suppress(RuntimeError):  # the loop ended by itself
                self._loop.call_soon_threadsafe(self._end.set)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._forward(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.close())  # also where it was ended before it began

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(_copy(reader, inner_writer)),
            asyncio.create_task(_copy(inner_reader, writer)),
        ]
        try:
            # Where one side has ended, HTTP has no more use for the other.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.close()  # before anything is waited for, which may be cancelled once more
            inner_writer.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(256 * 1024):
            target.write(data)
            await target.drain()


def _certificates(folder: Path) -> tuple[Path, Path]:
    """Make an authority and a certificate for 127.0.0.1 and localhost: the authority's file, and that of the server."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coatcheck's tests")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    signs = dict.fromkeys(inspect.signature(x509.KeyUsage).parameters, False) | {"key_cert_sign": True}
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _valid_for_a_day(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**signs), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        _valid_for_a_day(name, authority_name, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    ca_bundle, chain = folder / "ca.pem", folder / "server.pem"
    ca_bundle.write_bytes(authority.public_bytes(pem))
    chain.write_bytes(secret + certificate.public_bytes(pem))
    return ca_bundle, chain


def _valid_for_a_day(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
