"""Access keys with an end, and the gate in front of moto that asks for them.

moto takes any key. The gate reads the credential of every request, as a store does: the key from the
Authorization header, the session token from X-Amz-Security-Token, and for S3 the signature.
"""

import json
import re
import secrets
import threading
import time
from dataclasses import dataclass

from servers.signature import is_signed_with

_CREDENTIAL = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/,\s]+)/\d+/[^/]+/([^/]+)/aws4_request")


@dataclass(frozen=True)
class _Key:
    secret: str
    token: str | None
    # Seconds since 1970; None: never.
    expires: float | None


class Vault:
    """The keys that the store knows: one without an end, and vended ones."""

    def __init__(self, key, secret):
        self._lock = threading.Lock()
        self._keys = {key: _Key(secret, None, None)}

    def vend(self, seconds):
        """A new key that is valid for `seconds`, as properties of an Iceberg catalog."""
        key = "ASIA" + secrets.token_hex(8).upper()
        expires = time.time() + seconds
        entry = _Key(secrets.token_hex(20), secrets.token_hex(40), expires)
        with self._lock:
            self._keys[key] = entry
        return {
            "s3.access-key-id": key,
            "s3.secret-access-key": entry.secret,
            "s3.session-token": entry.token,
            "s3.session-token-expires-at-ms": str(int(expires * 1000)),
        }

    def revoke(self):
        """End all vended keys now, whatever was promised."""
        with self._lock:
            for key, entry in self._keys.items():
                if entry.expires is not None:
                    self._keys[key] = _Key(entry.secret, entry.token, 0.0)

    def refusal(self, key, service, environ):
        """The code and text of S3's refusal of a WSGI request, or None where its key is good."""
        with self._lock:
            entry = self._keys.get(key)
        if entry is None:
            return "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist"
        if environ.get("HTTP_X_AMZ_SECURITY_TOKEN") != entry.token:
            return "InvalidToken", "The provided token is malformed or otherwise invalid."
        if entry.expires is not None and time.time() >= entry.expires:
            return "ExpiredToken", "The provided token has expired."
        if service == "s3" and not is_signed_with(environ, entry.secret):
            return "SignatureDoesNotMatch", "The request signature we calculated does not match"
        return None


class Guard:
    """A WSGI application in front of another: refuses requests without a good key, and notes all."""

    def __init__(self, application, vault):
        self._application = application
        self._vault = vault
        self._lock = threading.Lock()
        self._seen = []

    def seen(self):
        """The answered requests: method, path, range, key and status of each."""
        with self._lock:
            return list(self._seen)

    def __call__(self, environ, start_response):
        """Answer one request."""
        found = _CREDENTIAL.match(environ.get("HTTP_AUTHORIZATION", ""))
        key, service = found.groups() if found else (None, "s3")
        note = {
            "service": service,
            "method": environ["REQUEST_METHOD"],
            "path": environ["PATH_INFO"],
            "range": environ.get("HTTP_RANGE"),
            "key": key,
        }

        def started(status, headers, error=None):
            with self._lock:
                self._seen.append({**note, "status": int(status.split()[0])})
            return start_response(status, headers, error)

        if found is None:
            refusal = "AccessDenied", "Access Denied"
        else:
            refusal = self._vault.refusal(key, service, environ)
        if refusal is None:
            return self._application(environ, started)
        # The connection is closed after each answer, so an unread body harms nobody.
        return _refuse(service, *refusal, started)


def _refuse(service, code, text, start_response):
    if service == "s3":
        status, kind = "403 Forbidden", "application/xml"
        body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'
    else:
        status, kind = "400 Bad Request", "application/x-amz-json-1.1"
        name = "ExpiredTokenException" if code == "ExpiredToken" else "UnrecognizedClientException"
        body = json.dumps({"__type": name, "message": "The security token is invalid."})
    data = body.encode()
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(data)))])
    return [data]
