"""Makes lists of revoked certificates (CRLs) of the authorities in `Keys`."""

import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from devkafka.keys import CA, OTHER_CA, Identity, Keys

__all__ = ["revocations"]


def revocations(keys: Keys, path: Path, *identities: Identity, other_ca: bool = False, expired: bool = False) -> Path:
    """Write the list of revoked certificates of the CA, or of the other CA, with those of the identities.

    expired   the list was valid until yesterday
    """
    authority = keys._authorities[OTHER_CA if other_ca else CA]
    issuer = x509.load_pem_x509_certificate((keys.other_ca if other_ca else keys.ca).read_bytes())
    key: Any = load_pem_private_key(authority.private_key_pem.bytes(), None)
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2 if expired else 0)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject).last_update(now)
    builder = builder.next_update(now + datetime.timedelta(days=1))
    for identity in identities:
        number = x509.load_pem_x509_certificate(identity.certificate.read_bytes()).serial_number
        revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
        builder = builder.add_revoked_certificate(revoked)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path
