"""The fault proxy does what the tests of faults rely on; Python's own HTTP client is the witness."""

import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from iceberg_servers import fresh
from servers.faults import Plan, Request
from stores import S3

BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def public(minio):
    """A bucket that needs no signature, with an object "o"."""
    store = minio.open_to_all(fresh("public"))
    store.put("o", BODY)
    return store


def ask(faults, public, headers=None, *, timeout=60, method="GET"):
    """Status, headers and body of one request on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(faults.endpoint).netloc, timeout=timeout)
    try:
        connection.request(method, f"/{public.bucket}/o", headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_without_faults_it_is_the_store(faults, public):
    status, headers, body = ask(faults, public)
    assert (status, body) == (200, BODY)
    assert headers["ETag"] == ask(faults, public, method="HEAD")[1]["ETag"]
    status, headers, body = ask(faults, public, {"Range": "bytes=10-19"})
    assert (status, headers["Content-Range"], body) == (206, f"bytes 10-19/{len(BODY)}", BODY[10:20])  # fmt: skip
    log = faults.log()
    assert [(one["method"], one["range"], one["sent"], one["status"]) for one in log] == [
        ("GET", None, len(BODY), 200),
        ("HEAD", None, 0, 200),
        ("GET", "bytes=10-19", 10, 206),
    ]


def test_signatures_stay_valid_and_bodies_are_written(faults):
    store = S3(faults.endpoint)
    name = fresh("written")
    store.put(f"{name}/ü =%+.bin", BODY)
    assert store.client().get_object(Bucket="lake", Key=f"{name}/ü =%+.bin")["Body"].read() == BODY
    found = store.client().list_objects_v2(Bucket="lake", Prefix=name)["Contents"]
    assert [one["Key"] for one in found] == [f"{name}/ü =%+.bin"]
    with pytest.raises(Exception, match="SignatureDoesNotMatch"):
        S3(faults.endpoint, secret="another").put(f"{name}/x", b"")


def test_statuses_say_what_s3_says(faults, public):
    faults.set({"kind": "status", "retry_after": 3})
    status, headers, body = ask(faults, public)
    assert (status, headers["Retry-After"]) == (503, "3")
    assert b"<Code>SlowDown</Code>" in body
    faults.set({"kind": "status", "status": 400, "code": "ExpiredToken", "echo": True})
    status, headers, body = ask(faults, public, {"X-Thing": "told"})
    assert (status, headers["Retry-After"]) == (400, None)
    assert b"<Code>ExpiredToken</Code>" in body
    assert b"x-thing: told" in body


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ({"kind": "reset", "when": "before"}, ConnectionResetError),
        ({"kind": "reset", "when": "headers"}, ConnectionResetError),
        ({"kind": "reset", "when": "body"}, ConnectionResetError),
        ({"kind": "cut"}, http.client.IncompleteRead),
        ({"kind": "length", "delta": 5}, http.client.IncompleteRead),
        ({"kind": "stall", "when": "headers", "seconds": 600}, TimeoutError),
        ({"kind": "stall", "when": "body", "seconds": 600}, TimeoutError),
        ({"kind": "silent"}, TimeoutError),
        ({"kind": "hold"}, TimeoutError),
    ],
)
def test_answers_break(faults, public, rule, error):
    faults.set({**rule, "times": 1})
    with pytest.raises(error):
        ask(faults, public, timeout=0.5 if error is TimeoutError else 60)
    assert ask(faults, public)[2] == BODY


def test_a_cut_body_has_its_part(faults, public):
    faults.set({"kind": "cut", "part": 0.25})
    with pytest.raises(http.client.IncompleteRead) as error:
        ask(faults, public)
    assert error.value.partial == BODY[: len(BODY) // 4]


def test_headers_lie(faults, public):
    faults.set({"kind": "length", "delta": -5})
    assert ask(faults, public)[2] == BODY[:-5]
    faults.set({"kind": "range", "delta": 7})
    assert ask(faults, public, {"Range": "bytes=10-19"})[1]["Content-Range"] == f"bytes 17-26/{len(BODY)}"  # fmt: skip
    faults.set({"kind": "range", "delta": 0})
    assert ask(faults, public, {"Range": "bytes=10-19"})[1]["Content-Range"] is None


def test_an_object_is_replaced(faults, public):
    first = ask(faults, public)[1]["ETag"]
    faults.set({"kind": "changed"})
    second = ask(faults, public)[1]["ETag"]
    assert second != first
    assert ask(faults, public, {"If-Match": first})[0] == 412
    assert ask(faults, public, {"If-Match": second})[0] == 200


def test_delays_add_up_and_the_link_is_shared(faults, public):
    faults.set({"kind": "latency", "seconds": 0.2}, {"kind": "link", "rate": len(BODY) * 10})
    start = time.monotonic()
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda _: ask(faults, public)[2], range(5)))
    assert found == [BODY] * 5
    # No less than the latency and five bodies through the link; how much more is the machine's affair.
    assert time.monotonic() - start >= 0.2 + 0.5 - 0.05


def test_what_is_held_is_released(faults, public):
    faults.set({"kind": "hold"})
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, faults, public) for _ in range(2)]
        while faults.figures()["requests"] < 2:
            time.sleep(0.01)
        assert not any(one.done() for one in answers)
        faults.release()
        assert [one.result()[2] for one in answers] == [BODY, BODY]
    assert faults.figures()["most_at_once"] == 2


def test_rules_choose_their_requests(faults, public):
    failing = {"kind": "status"}

    def statuses(count, **rule):
        faults.set({**failing, **rule})
        return [ask(faults, public)[0] for _ in range(count)]

    assert statuses(3, times=2) == [503, 503, 200]
    assert statuses(3, after=2) == [200, 200, 503]
    assert statuses(6, burst=[2, 1]) == [503, 503, 200, 503, 503, 200]
    assert statuses(3, tries=1) == [503, 200, 200]
    assert statuses(1, path="nothing") == [200]
    assert statuses(1, ranged=True) == [200]
    assert statuses(1, method="HEAD") == [200]
    assert faults.figures()["hits"] == {"status": 0}


def test_what_is_hit_follows_from_the_seed_and_not_from_the_order():
    requests = [Request("GET", f"/b/{n}", {}, b"") for n in range(300)]

    def hit(order, seed):
        plan = Plan([{"kind": "cut", "share": 0.3}], seed)
        return {one.target for one in order if plan.for_request(one)[0]}

    assert hit(requests, 1) == hit(requests[::-1], 1)
    assert hit(requests, 1) != hit(requests, 2)
    assert 50 < len(hit(requests, 1)) < 130


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"kind": "flood"}, "unknown kind of fault 'flood'"),
        ({"kind": "reset", "when": "later"}, "when='later'"),
        ({"kind": "link"}, "rate of a link"),
        ({"kind": "cut", "colour": "red"}, "colour"),
    ],
)
def test_rules_that_make_no_sense_are_refused(faults, rule, told):
    with pytest.raises(ValueError, match=told):
        faults.set(rule)
