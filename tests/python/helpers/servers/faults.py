"""Which faults the fault proxy makes, and for which requests: decided by a seed, not by the order of arrival.

A request is known by its method, its address and the last byte of its range, so that a client that goes on
in the middle of a body asks for the same thing again: that is its second *try*. Whether a rule with a `share`
below 1 hits a try follows from the seed, the request and the number of the try alone.
"""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field

# Effects of a rule. All but the first two are faults. A request gets one fault: that of the first rule that hits
# it. Delays add up.
KINDS = {
    "latency": "wait `seconds` before the request goes on to the store",
    "link": "send all bodies through one link of `rate` bytes per second",
    "status": "answer `status` with S3's error `code`, and `retry_after` seconds where given",
    "reset": "reset the connection (RST), `when` is before the answer, in its headers or in its body",
    "cut": "close the connection (FIN) after `part` of the body",
    "stall": "send nothing for `seconds`, `when` is before the headers or in the body",
    "length": "say that the body is `delta` bytes longer or shorter than it is",
    "range": "say a Content-Range that is moved by `delta` bytes, or none at all with `delta` 0",
    "changed": "be another version of the object: another etag, and 412 where the old one is demanded",
    "silent": "never answer; the connection stays open",
    "hold": "wait until the test says `release`, then answer as ever",
}
_DELAYS = ("latency", "link")
_PLACES = {"reset": ("before", "headers", "body"), "stall": ("headers", "body")}


@dataclass
class Rule:
    """One fault and the requests that it hits."""

    kind: str
    # Which requests: a regular expression each, found anywhere in the address (path and query); and whether
    # they have a Range header, None: either.
    method: str = "GET"
    path: str = ""
    ranged: bool | None = None
    # Of the requests that match: this share of all tries, chosen by the seed;
    share: float = 1.0
    # only the first tries of each request, None: all;
    tries: int | None = None
    # none of the first `after` and at most `times` of all;
    after: int = 0
    times: int | None = None
    # `burst` [on, off]: so many in a row, then so many not.
    burst: tuple[int, int] | None = None

    seconds: float = 0.0
    rate: float = 0.0
    status: int = 503
    code: str = "SlowDown"
    retry_after: float | None = None
    when: str = "body"
    part: float = 0.5
    delta: int = 0
    # Repeat the request's headers in the body of the error, as some gateways do.
    echo: bool = False

    matched: int = field(default=0, init=False)
    hits: int = field(default=0, init=False)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of fault {self.kind!r}; the kinds are {list(KINDS)}")
        places = _PLACES.get(self.kind)
        if places and self.when not in places:
            raise ValueError(f"when={self.when!r} of a {self.kind} must be one of {places}")
        if self.kind == "link" and not self.rate > 0:
            raise ValueError(f"the rate of a link must be above 0, got {self.rate}")

    def hits_request(self, request, tried, seed):
        """Whether this rule hits a try of `request`, after `tried` earlier ones."""
        if not re.fullmatch(self.method, request.method) or not re.search(
            self.path, request.target
        ):
            return False
        if self.ranged is not None and self.ranged != (request.range is not None):
            return False
        if self.tries is not None and tried >= self.tries:
            return False
        number = self.matched
        self.matched += 1
        if number < self.after or (self.times is not None and self.hits >= self.times):
            return False
        if self.burst is not None and (number - self.after) % sum(self.burst) >= self.burst[0]:
            return False
        if self.share < 1.0 and _chance(seed, self.kind, *request.key, tried) >= self.share:
            return False
        self.hits += 1
        return True


@dataclass
class Request:
    """The head of one request: method, address (path and query), and headers with names in lower case."""

    method: str
    target: str
    headers: dict
    # The bytes of the head.
    head: bytes

    @property
    def range(self):
        """The Range header, or None."""
        return self.headers.get("range")

    @property
    def key(self):
        """The parts that all tries of a request share."""
        return self.method, self.target, (self.range or "").rpartition("-")[2]


class Plan:
    """The rules in force and how often each request was tried."""

    def __init__(self, rules=(), seed=0):
        self.rules = [Rule(**rule) for rule in rules]
        self.seed = seed
        self._tried = Counter()

    def for_request(self, request):
        """The fault of this try, or None, and its delays."""
        if not self.rules:
            return None, []
        tried = self._tried[request.key]
        self._tried[request.key] += 1
        fault, delays = None, []
        for rule in self.rules:
            if rule.kind in _DELAYS:
                if rule.hits_request(request, tried, self.seed):
                    delays.append(rule)
            elif fault is None and rule.hits_request(request, tried, self.seed):
                fault = rule
        return fault, delays

    def hits(self):
        """How often each kind of rule hit."""
        found = Counter()
        for rule in self.rules:
            found[rule.kind] += rule.hits
        return dict(found)


def _chance(*words):
    """A number in [0, 1) that follows from `words`."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
