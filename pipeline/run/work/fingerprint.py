"""Fingerprints by which a run recognises its secret key without storing it."""

from __future__ import annotations

import hashlib
import hmac
import secrets


def fingerprint(key: str) -> str:
    """A salted digest of a secret, slow to compute, so that guessing is costly; differs each time.

    >>> is_fingerprint_of(fingerprint("secret"), "secret"), is_fingerprint_of(fingerprint("secret"), "other")
    (True, False)
    """
    salt = secrets.token_hex(16)
    return f"scrypt:{salt}:{_digest(key, salt)}"


def is_fingerprint_of(text: str, key: str) -> bool:
    """Whether a fingerprint was made from this secret; False for any other text."""
    method, _, rest = text.partition(":")
    salt, _, digest = rest.partition(":")
    return method == "scrypt" and hmac.compare_digest(_digest(key, salt).encode(), digest.encode())


def _digest(key: str, salt: str) -> str:
    return hashlib.scrypt(key.encode(), salt=salt.encode(), n=2**15, r=8, p=1, maxmem=2**26, dklen=32).hex()
