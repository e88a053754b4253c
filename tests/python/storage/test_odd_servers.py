"""Promise: odd answers of a server cost no row silently: each is asked for again, or is an error that says what is
odd."""

import contextlib
import itertools
import json
import time
from hashlib import md5
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

import tensorquery as tq
from storage_servers import parquet_bytes, web_server
from tensorquery import _core

FILES, ROWS = 8, 20
XML = {"Content-Type": "application/xml"}
ERROR = "<Error><Code>InternalError</Code><Message>We broke</Message></Error>"


def table(start, rows=ROWS):
    return pa.table({"id": pa.array(range(start, start + rows))})


def numbered(fmt, start):
    """A file of a format with the ids from a start on."""
    rows = table(start)
    if fmt == "parquet":
        return parquet_bytes(rows)
    if fmt == "arrow":
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return sink.getvalue().to_pybytes()
    lines = {"csv": "{}", "json": '{{"id": {}}}'}[fmt]
    text = "\n".join(lines.format(i) for i in range(start, start + ROWS))
    return (f"id\n{text}\n" if fmt == "csv" else f"{text}\n").encode()


def tag(data):
    return f'"{md5(data).hexdigest()}"'


@pytest.fixture
def web():
    """A server of the bucket "box", whose listing has three keys a page."""
    with web_server() as web:
        web.special["/box"] = lambda handler: page_of(web, handler)
        yield web


def page_of(web, handler):
    query = {name: one[0] for name, one in parse_qs(urlsplit(handler.path).query).items()}
    prefix = "/box/" + query.get("prefix", "")
    keys = sorted(name for name in web.files if name.startswith(prefix))
    start = int(query.get("continuation-token", 0))
    contents = "".join(
        f"<Contents><Key>{key.removeprefix('/box/')}</Key><Size>{len(web.files[key])}</Size>"
        f"<LastModified>1970-01-01T00:00:00.000Z</LastModified><ETag>{tag(web.files[key])}</ETag>"
        "</Contents>"
        for key in keys[start : start + 3]
    )
    more = start + 3 < len(keys)
    token = f"<NextContinuationToken>{start + 3}</NextContinuationToken>" if more else ""
    truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
    return f"<ListBucketResult>{truncated}{token}{contents}</ListBucketResult>".encode()


def fill(web, fmt="parquet"):
    for number in range(FILES):
        web.files[f"/box/t/f{number}.{fmt}"] = numbered(fmt, number * ROWS)


def options(web, **more):
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "us-east-1"}
    fast = {"max_retries": "3", "init_backoff": "5ms", "max_backoff": "20ms", "timeout": "5s"}
    return {**keys, "aws_endpoint": web.uri, **fast, **more}


def read(web, storage=None, **more):
    """The dataset of the bucket's table and its ids."""
    loader, dataset = tq.create_dataloader(
        path="s3://box/t/",
        storage_options=options(web, **storage or {}),
        rank=0,
        world_size=1,
        **more,
    )
    return dataset, sorted(int(i) for batch in loader for i in batch["id"])


def ids(web, storage=None, **more):
    return read(web, storage, **more)[1]


def times(count, wanted, answer):
    """An answer to the first so many requests that are wanted."""
    left = [count]

    def odd(handler):
        if left[0] == 0 or not wanted(handler):
            return False
        left[0] -= 1
        answer(handler)
        return True

    return odd


ALL = list(range(FILES * ROWS))


def test_a_page_has_an_end(web):
    def odd(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            for _ in range(65):
                handler.wfile.write(b" " * (1 << 20))
        return True

    web.odd = lambda handler: listing(handler) and odd(handler)
    told = f"{web.uri} answers with more than 67108864 bytes"
    with pytest.raises(tq.StorageError, match=told):
        tq.Session(storage_options=options(web)).register_parquet("t", "s3://box/t/")


@pytest.mark.slow
def test_a_listing_has_an_end(web):
    """A store that gives pages without keys, each with a token for the next."""
    asked = itertools.count()

    def page(handler):
        if not listing(handler):
            return False
        token = f"<NextContinuationToken>{next(asked)}</NextContinuationToken>"
        body = f"<ListBucketResult><IsTruncated>true</IsTruncated>{token}</ListBucketResult>"
        handler.wfile.write(
            f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        return True

    web.odd = page
    for bound, most in {"store pages": 20, "store listing": 1000}.items():
        _core.lower_bound(bound, most)
        try:
            told = rf'a listing of the store at 127\.0\.0\.1 has more than {most}.*bound "{bound}"'
            with pytest.raises(tq.StorageError, match=told):
                tq.Session(storage_options=options(web)).register_parquet("t", "s3://box/t/")
        finally:
            _core.lower_bound(bound, None)
    assert next(asked) < 50


def test_an_error_is_cut(web):
    web.odd = lambda handler: handler.reply(400, b"we " * (1 << 20)) or True
    with pytest.raises(tq.StorageError, match="400 Bad Request: we we") as caught:
        tq.Session(storage_options=options(web)).register_parquet("t", "s3://box/t/")
    assert len(str(caught.value)) < 100_000


# ------------------------------------------------------------------------------------------------
# Listings.


def second_page(handler):
    return "continuation-token=3" in handler.path


def listing(handler):
    return "list-type=2" in handler.path


@pytest.mark.slow
@pytest.mark.parametrize("headers", [XML, {}, {**XML, "ETag": '"x"'}], ids=["xml", "none", "etag"])
@pytest.mark.parametrize("page", [listing, second_page])
def test_an_error_in_place_of_a_page_is_asked_for_again(web, page, headers):
    fill(web)
    web.odd = times(2, page, lambda handler: handler.reply(200, ERROR.encode(), headers))
    assert ids(web) == ALL
    web.odd = times(9, page, lambda handler: handler.reply(200, ERROR.encode(), headers))
    with pytest.raises(tq.StorageError, match="InternalError: We broke") as error:
        ids(web)
    assert "cannot list s3://box/t" in str(error.value)


@pytest.mark.parametrize("page", [listing, second_page])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("<!DOCTYPE html>\n<html><body>Log in</body></html>", "no listing of a store.*Log in"),
        ("", "no listing"),
        (json.dumps({"keys": []}), "no listing"),
        (
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "no NextContinuationToken",
        ),
    ],
)
def test_what_is_no_page_is_an_error(web, page, body, told):
    fill(web)
    web.odd = times(1, page, lambda handler: handler.reply(200, body.encode(), XML))
    with pytest.raises(tq.StorageError, match=told):
        ids(web)


# ------------------------------------------------------------------------------------------------
# One server of several that is behind: nothing is wrong with the file.


def get_of(number):
    return lambda handler: handler.command == "GET" and f"/f{number}." in handler.path


def missing(handler):
    handler.reply(404, b"<Error><Code>NoSuchKey</Code></Error>", XML)


def other_file(web, handler, *, etag, more=b""):
    """Answer the request from another file, or from a longer one."""
    data = web.files[handler.path]
    headers = {"ETag": etag or tag(data)}
    asked = handler.headers.get("Range")
    if asked is None:
        handler.reply(200, data + more, headers)
        return
    first, _, last = asked.removeprefix("bytes=").partition("-")
    first, last = int(first), min(int(last), len(data) - 1)
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data) + len(more)}"
    handler.reply(206, data[first : last + 1], headers)


STRANGE = {
    "404": lambda web: missing,
    "etag": lambda web: lambda handler: other_file(web, handler, etag='"other"'),
    "size": lambda web: lambda handler: other_file(web, handler, etag=None, more=b" "),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("fmt", ["parquet", "csv", "json", "arrow"])
def test_a_strange_answer_that_passes_costs_no_file(web, fmt, name):
    fill(web, fmt)
    for number in range(3):
        answer = STRANGE[name](web)
        passed = times(number, get_of(5), lambda handler: False)
        odd = times(1, get_of(5), answer)
        web.odd = lambda handler, passed=passed, odd=odd: not passed(handler) and odd(handler)
        dataset, found = read(web, format=fmt, on_error="skip")
        assert found == ALL
        assert dataset.quarantined == []


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("fmt", ["parquet", "csv", "json", "arrow"])
def test_a_strange_answer_that_stays_is_an_error_whatever_is_skipped(web, fmt, name):
    """HEAD says that the file is the pinned one."""
    fill(web, fmt)
    web.odd = times(10**6, get_of(5), STRANGE[name](web))
    for more in ({}, {"on_error": "skip"}):
        told = rf"f5\.{fmt} (vanished|changed) after the query was planned"
        with pytest.raises(tq.DataError, match=told):
            ids(web, format=fmt, **more)


# ------------------------------------------------------------------------------------------------
# Plain HTTP servers.


def plain(web, name, **more):
    """The ids of one file of an HTTP server."""
    patient = {"max_retries": "3", "init_backoff": "5ms", "max_backoff": "20ms"}
    loader, _ = tq.create_dataloader(
        path=web.uri + name, storage_options=patient | more, rank=0, world_size=1
    )
    return sorted(int(i) for batch in loader for i in batch["id"])


def send(handler, status, headers, data=b""):
    """An answer whose headers are these alone."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def range_of(handler, data):
    first, _, last = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
    return int(first), min(int(last or len(data)), len(data) - 1) + 1


LARGE = parquet_bytes(table(0, 40_000))
TEXT = ("id\n" + "".join(f"{i}\n" for i in range(40_000))).encode()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "data"), [("/a.parquet", LARGE), ("/a.csv", TEXT)])
@pytest.mark.parametrize("first", [1, 2])
def test_bodies_without_an_etag_go_on_where_they_break_off(web, name, data, first):
    web.files[name] = data
    seen, always = [0], []

    def odd(handler):
        start, stop = range_of(handler, data)
        seen[0] += handler.command == "GET"
        cut = handler.command == "GET" and (always or seen[0] % 2 == first % 2)
        size = {"Content-Length": stop - start, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        part = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        ranged = "Range" in handler.headers
        body = data[start : start + (stop - start) // 2] if cut else data[start:stop]
        body = body if handler.command == "GET" else b""
        send(handler, 206 if ranged else 200, size | (part if ranged else {}), body)
        handler.close_connection = bool(cut)
        return True

    web.odd = odd
    assert plain(web, name) == list(range(40_000))
    assert seen[0] >= 2
    always.append(True)
    with pytest.raises(tq.StorageError):
        plain(web, name, max_retries="0")


def test_a_body_without_an_etag_does_not_go_on_in_another_file(web):
    """The rest of the body has another time: the file was written meanwhile."""
    web.files["/a.csv"] = TEXT
    seen = [0]

    def odd(handler):
        start, stop = range_of(handler, TEXT)
        seen[0] += handler.command == "GET"
        late = seen[0] > 2
        headers = {
            "Content-Length": stop - start,
            "Last-Modified": f"Thu, 01 Jan 2026 00:00:0{int(late)} GMT",
        }
        if "Range" in handler.headers:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(TEXT)}"
        body = TEXT[start : stop if late else (start + stop) // 2]
        send(handler, 206 if "Range" in handler.headers else 200, headers, body)
        handler.close_connection = True
        return True

    web.odd = lambda handler: handler.command == "GET" and odd(handler)
    with pytest.raises((tq.StorageError, tq.DataError)):
        plain(web, "/a.csv")


def is_head(handler):
    return handler.command == "HEAD"


def asks_for_range(handler):
    return "Range" in handler.headers


@pytest.mark.slow
@pytest.mark.parametrize("status", [403, 404, 405, 501])
def test_files_of_servers_that_do_not_answer_head(web, status):
    web.files["/a.parquet"] = LARGE
    web.odd = times(99, is_head, lambda handler: handler.reply(status, b""))
    assert plain(web, "/a.parquet") == list(range(40_000))
    with pytest.raises(tq.TableNotFoundError, match="there is no file"):
        plain(web, "/b.parquet")


def test_a_head_without_a_length(web):
    web.files["/a.parquet"] = LARGE
    web.odd = times(99, is_head, lambda handler: send(handler, 200, {"Connection": "close"}))
    assert plain(web, "/a.parquet") == list(range(40_000))


def test_a_server_without_ranges_is_an_error_that_says_what_to_do(web):
    web.files["/a.parquet"] = LARGE
    web.odd = times(99, asks_for_range, lambda handler: handler.reply(200, LARGE))
    with pytest.raises(tq.StorageError, match="whole files only: download the file") as error:
        plain(web, "/a.parquet")
    assert f"{web.uri}/a.parquet" in str(error.value)


# ------------------------------------------------------------------------------------------------
# Keys and pauses.


def test_why_a_request_could_not_be_sent_is_said(web):
    with pytest.raises(tq.StorageError, match=r"(?i)corrupt message|InvalidContentType"):
        ids(web, {"aws_endpoint": web.uri.replace("http:", "https:"), "max_retries": "0"})
    with pytest.raises(tq.StorageError, match=r"refused"):
        ids(web, {"aws_endpoint": "http://127.0.0.1:9", "max_retries": "0"})


def test_a_slash_inside_of_a_name_is_refused(web):
    """`%2F` names another file than a slash; the file with the slash was read."""
    web.files["/a/b.csv"] = b"id\n1\n"
    with pytest.raises(tq.ConfigError, match="%2F"):
        plain(web, "/a%2Fb.csv")


@pytest.mark.parametrize("key", ["t//b.parquet", "t/./b.parquet"])
def test_a_key_that_no_path_can_name_is_named(web, key):
    fill(web)
    web.files[f"/box/{key}"] = b""
    with pytest.raises(tq.StorageError, match="no part of a key") as error:
        ids(web)
    assert key in str(error.value)
    assert "UTF-8" not in str(error.value)


@pytest.mark.slow
def test_a_pause_that_a_store_asks_for_is_its_own_and_no_longer_than_the_retries(web):
    fill(web)
    said = {**XML, "Retry-After": "3600"}
    web.odd = times(99, lambda handler: True, lambda handler: handler.reply(503, b"", said))
    begun = time.monotonic()
    with pytest.raises(tq.StorageError, match="503"):
        ids(web, {"retry_timeout": "1s"})
    with web_server() as other:
        other.files["/a.parquet"] = LARGE
        assert plain(other, "/a.parquet") == list(range(40_000))
    assert time.monotonic() - begun < 15
