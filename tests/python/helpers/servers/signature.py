"""Signature version 4 of AWS, as S3 verifies it: whether a request was signed with a secret."""

import hashlib
import hmac
import re
from urllib.parse import quote, unquote_plus

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,\s]+)/(\d+)/([^/]+)/([^/]+)/aws4_request,\s*"
    r"SignedHeaders=([^,\s]+),\s*Signature=([0-9a-f]{64})"
)


def is_signed_with(environ, secret):
    """Whether the Authorization header of a WSGI request to S3 was made with `secret`."""
    found = _AUTHORIZATION.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))
    if found is None:
        return False
    _, day, region, service, names, signature = found.groups()
    path, _, query = environ["RAW_URI"].partition("?")
    canonical = "\n".join(
        [
            environ["REQUEST_METHOD"],
            path,
            _sorted(query),
            *(f"{name}:{_header(environ, name)}" for name in names.split(";")),
            "",
            names,
            environ.get("HTTP_X_AMZ_CONTENT_SHA256", ""),
        ]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            environ.get("HTTP_X_AMZ_DATE", ""),
            scope,
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{secret}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    return hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature)


def _sorted(query):
    """The query with each name and value encoded once, in the order of the names."""
    pairs = [part.partition("=")[::2] for part in query.split("&") if part]
    encoded = sorted(
        (quote(unquote_plus(n), safe="-_.~"), quote(unquote_plus(v), safe="-_.~")) for n, v in pairs
    )
    return "&".join(f"{name}={value}" for name, value in encoded)


def _header(environ, name):
    variable = name.upper().replace("-", "_")
    if variable not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        variable = f"HTTP_{variable}"
    return " ".join(environ.get(variable, "").split())
