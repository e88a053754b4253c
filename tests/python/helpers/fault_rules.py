"""Faults that the proxy in front of a store makes, by name, and what an error says of each."""

from effort import LONG

# Faults that pass: a request fails a few times at most, and the rows must arrive.
PASSING = {
    "503": [{"kind": "status", "share": 0.3, "tries": 5}],
    "503 in bursts": [{"kind": "status", "burst": [6, 12]}],
    "503 with Retry-After": [{"kind": "status", "retry_after": 1, "after": 2, "times": 3}],
    "429": [{"kind": "status", "status": 429, "code": "TooManyRequests", "share": 0.3, "tries": 5}],
    "429 in bursts with Retry-After": [
        {"kind": "status", "status": 429, "code": "SlowDown", "retry_after": 0, "burst": [5, 9]}
    ],
    "500": [{"kind": "status", "status": 500, "code": "InternalError", "share": 0.3, "tries": 5}],
    "reset before the answer": [{"kind": "reset", "when": "before", "share": 0.3, "tries": 5}],
    "reset in the headers": [{"kind": "reset", "when": "headers", "share": 0.3, "tries": 5}],
    "reset in the body": [{"kind": "reset", "when": "body", "share": 0.3, "tries": 5}],
    "cut bodies": [{"kind": "cut", "share": 0.5, "tries": 5}],
    "bodies cut at once": [{"kind": "cut", "part": 0.0, "share": 0.3, "tries": 5}],
    "stall before the headers": [{"kind": "stall", "when": "headers", "seconds": 600, "after": 3, "times": 4}],
    "stall in the body": [{"kind": "stall", "seconds": 600, "after": 3, "times": 4}],
    "silence": [{"kind": "silent", "after": 3, "times": 3}],
    "latency": [{"kind": "latency", "seconds": 0.05}],
    "slow link": [{"kind": "link", "rate": 20e6 if LONG else 2e6}],
    "bodies said to be longer": [{"kind": "length", "delta": 100, "ranged": True, "share": 0.5, "tries": 5}],
    "bodies said to be shorter": [{"kind": "length", "delta": -100, "ranged": True, "share": 0.5, "tries": 5}],
    "all at once": [
        {"kind": "latency", "seconds": 0.01},
        {"kind": "link", "rate": 20e6},
        {"kind": "status", "share": 0.1, "tries": 5},
        {"kind": "status", "status": 429, "code": "SlowDown", "retry_after": 0, "share": 0.1, "tries": 5},
        {"kind": "reset", "share": 0.1, "tries": 5},
        {"kind": "reset", "when": "headers", "share": 0.1, "tries": 5},
        {"kind": "cut", "share": 0.1, "tries": 5},
        {"kind": "length", "delta": -7, "ranged": True, "share": 0.1, "tries": 5},
        {"kind": "silent", "after": 9, "times": 2},
    ],
}  # fmt: skip

# Faults that stay, and what the error says of each.
STAYING = {
    "503": ([{"kind": "status"}], "503"),
    "429": ([{"kind": "status", "status": 429, "code": "SlowDown"}], "429"),
    "reset before the answer": ([{"kind": "reset", "when": "before"}], "retries"),
    "reset in the headers": ([{"kind": "reset", "when": "headers"}], "retries"),
    "reset in the body": ([{"kind": "reset", "when": "body", "part": 0.0}], "body|ended"),
    "bodies cut at once": ([{"kind": "cut", "part": 0.0}], "body|ended"),
    "stall in the body": ([{"kind": "stall", "part": 0.0, "seconds": 600}], "timeout"),
    "silence": ([{"kind": "silent"}], "timeout"),
    "an expired token, 400": ([{"kind": "status", "status": 400, "code": "ExpiredToken"}], "ExpiredToken"),
    "an expired token, 403": ([{"kind": "status", "status": 403, "code": "ExpiredToken"}], "ExpiredToken"),
}  # fmt: skip

# Answers that contradict themselves: the right rows or the error.
LYING = {
    "bodies said to be longer": [{"kind": "length", "delta": 100}],
    "bodies said to be shorter": [{"kind": "length", "delta": -100}],
    "another range": [{"kind": "range", "delta": 7}],
    "no range": [{"kind": "range", "delta": 0}],
    "cut bodies": [{"kind": "cut"}],
}


def is_clear(error, faults, url):
    """Assert that the error names the file or the folder, in one line, and no key."""
    message = str(error)
    assert url.removeprefix("s3://").rstrip("/") in message, message
    assert faults.store.secret not in message
    assert len(message) < 1500, message
