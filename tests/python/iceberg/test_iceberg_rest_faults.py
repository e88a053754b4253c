"""Promise: a REST catalog that fails for a moment costs time and no run; a wrong answer is an error, and none shows
a secret."""

import contextlib
import itertools
import socket
import struct
import threading
import time

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import tensorquery as tq
from iceberg_by_hand import TableByHand, column, rows_of
from storage_servers import web_server
from support import in_a_fork

CONFIG, TOKENS = "/v1/config", "/v1/oauth/tokens"
TABLE = "/v1/namespaces/ns/tables/t"


@pytest.fixture
def web(tmp_path):
    """A catalog with one table of three rows."""
    table = TableByHand(tmp_path / "t", Schema(NestedField(1, "id", LongType(), required=False)))
    table.commit(table.file(rows_of((column("id", pa.int64(), 1), [1, 2, 3]))))
    with web_server() as web:
        web.special = {
            CONFIG: lambda _: {"defaults": {}, "overrides": {}},
            TOKENS: lambda _: {"access_token": "t0ken", "token_type": "bearer"},
            TABLE: lambda _: {"metadata": table.metadata(), "config": {}},
        }
        yield web


def session_of(web, **properties):
    session = tq.Session()
    session.register_iceberg("lake", {"type": "rest", "uri": web.uri, **properties})
    return session


def read(web, name="t", **properties):
    found = session_of(web, **properties).sql(f'SELECT id FROM lake.ns."{name}"').to_arrow()
    return found["id"].to_pylist()


def failing(web, path, count, answer):
    """From now on `answer` answers the first `count` requests for a path; their times."""
    moments = []

    def odd(handler):
        if not handler.path.startswith(path) or len(moments) == count:
            return False
        moments.append(time.monotonic())
        answer(handler)
        return True

    web.odd = odd
    return moments


def reset(handler):
    """End the connection without an answer, as a server that is stopped does."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    close(handler)


def close(handler):
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def half(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{")
    handler.close_connection = True


FAULTS = {
    "reset": reset,
    "close": close,
    "half": half,
    "429": lambda handler: handler.reply(429, b"slow down"),
    "503": lambda handler: handler.reply(503, b"<html>later</html>"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", [CONFIG, TOKENS, TABLE])
def test_what_fails_for_a_moment_is_asked_again(web, path, fault):
    moments = failing(web, path, 2, FAULTS[fault])
    assert read(web, credential="me:s3cret") == [1, 2, 3]
    assert len(moments) == 2


@pytest.mark.slow
@pytest.mark.parametrize("path", [TOKENS, TABLE])
def test_a_catalog_says_when_to_come_again(web, path):
    moments = failing(web, path, 2, lambda handler: handler.reply(503, b"", {"Retry-After": "1"}))
    assert read(web, credential="me:s3cret") == [1, 2, 3]
    assert moments[1] - moments[0] >= 1


@pytest.mark.parametrize("life", [3600, "3600", 0.5, "soon", None])
def test_how_long_a_token_lives_may_be_written_in_several_ways(web, life):
    web.special[TOKENS] = lambda _: {"access_token": "t0ken", "expires_in": life}
    assert read(web, credential="me:s3cret") == [1, 2, 3]


def test_the_server_of_tokens_may_be_told_relative_to_the_catalog(web):
    web.special["/own/tokens"] = web.special.pop(TOKENS)
    properties = {"credential": "me:s3cret", "oauth2-server-uri": "own/tokens"}
    assert read(web, **properties) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_process_that_is_forked_while_a_catalog_is_reached_reaches_it_itself(web):
    session, asked = session_of(web), threading.Event()

    def late(handler):
        asked.set()
        time.sleep(2)
        return {"defaults": {}, "overrides": {}}

    web.special[CONFIG] = late
    query = threading.Thread(target=lambda: session.sql("SELECT * FROM lake.ns.t"))
    query.start()
    asked.wait(30)
    assert in_a_fork(lambda: session.sql("SELECT * FROM lake.ns.t").count()) == "3"
    query.join()


def test_pages_that_lead_back_are_an_error(web):
    later = {"": "a", "a": "b", "b": "a"}

    def page(handler):
        _, _, token = handler.path.partition("pageToken=")
        return {"identifiers": [], "next-page-token": later[token]}

    web.special["/v1/namespaces/ns/tables"] = page
    web.special["/v1/namespaces"] = lambda _: {"namespaces": []}
    with pytest.raises(tq.StorageError, match="the same page twice"):
        session_of(web).list_iceberg("lake.ns")


@pytest.mark.slow
def test_a_table_may_have_a_dollar_sign_in_its_name(web):
    web.special["/v1/namespaces/ns/tables/t%24A"] = web.special[TABLE]
    # The server of the test decodes paths.
    web.special["/v1/namespaces/ns/tables/t$A"] = web.special[TABLE]
    assert read(web, "t$A") == [1, 2, 3]
    session = session_of(web)
    assert session.sql('SELECT * FROM lake.ns."t$files"').count() == 1
    with pytest.raises(tq.TableNotFoundError, match=r"no metadata table \$file"):
        session.sql('SELECT * FROM lake.ns."t$file"')


@pytest.mark.slow
def test_names_with_dots_are_written_in_quotes(web):
    web.special["/v1/namespaces/a.b/tables/c.d"] = web.special[TABLE]
    web.special["/v1/namespaces"] = lambda handler: {
        "namespaces": [] if "parent" in handler.path else [["a.b"]]
    }
    web.special["/v1/namespaces/a.b/tables"] = lambda _: {"identifiers": [{"name": "c.d"}]}
    session = session_of(web)
    assert session.list_iceberg("lake") == ['lake."a.b".']
    (name,) = session.list_iceberg('lake."a.b"')
    assert name == 'lake."a.b"."c.d"'
    session.register_iceberg_table("t", name)
    assert session.table("t").count() == session.sql(f"SELECT id FROM {name}").count() == 3
    for given in (
        {"table": name, "session": session},
        {"table": '"a.b"."c.d"', "catalog_config": {"type": "rest", "uri": web.uri}},
    ):
        loader, _ = tq.create_dataloader(**given)
        assert [int(i) for batch in loader for i in batch["id"]] == [1, 2, 3]


def refused(handler):
    handler.reply(403, b"no")
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "properties",
    [
        {"uri": "http://me:hunter2@{host}"},
        {"uri": "http://me:hunter2@127.0.0.1:9"},
        {"uri": "http://{host}", "oauth2-server-uri": "http://me:hunter2@{host}/v1/oauth/tokens"},
        {"uri": "http://{host}", "oauth2-server-uri": "http://127.0.0.1:9/t?key=hunter2"},
        {"uri": "thrift://me:hunter2@127.0.0.1:9"},
        {"uri": "postgresql://127.0.0.1:9/db?user=me&password=hunter2"},
        {"uri": "postgresql://127.0.0.1:port/db?password=hunter2"},
        {"uri": "postgresql://me:hunt/er2@127.0.0.1:9/db"},
        {"uri": "mysql://127.0.0.1/db?password=hunter2"},
    ],
    ids=lambda properties: list(properties.values())[-1].replace("hunter2", ""),
)
def test_no_error_shows_a_password_of_an_address(web, properties):
    web.odd = refused
    host = web.uri.removeprefix("http://")
    own = {name: value.format(host=host) for name, value in properties.items()}
    if own["uri"].startswith("http"):
        own["credential"] = "me:s3cret"
    with pytest.raises(tq.TensorQueryError) as caught:
        session = tq.Session()
        session.register_iceberg("lake", own)
        session.sql("SELECT * FROM lake.ns.t")
    text = f"{caught.value!r} {caught.value.__cause__!r}"
    assert "hunter2" not in text
    assert "hunt/er2" not in text


# ------------------------------------------------------------------------------------------------
# Answers without an end.


def endless(path, count):
    """Answers one path by a body that goes on until the reader hangs up, or for `count` bytes."""

    def odd(handler):
        if not handler.path.startswith(path):
            return False
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            for _ in range(count >> 16):
                handler.wfile.write(b" " * (1 << 16))
        return True

    return odd


def test_a_token_has_an_end(web):
    web.odd = endless(TOKENS, 2 << 20)
    with pytest.raises(tq.StorageError, match=f"{web.uri} answers with more than 1048576 bytes"):
        read(web, credential="me:s3cret")


@pytest.mark.parametrize("path", [CONFIG, TABLE])
def test_an_answer_that_says_to_be_too_large_is_not_begun(web, path):
    def odd(handler):
        if not handler.path.startswith(path):
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str((256 << 20) + 1))
        handler.end_headers()
        handler.close_connection = True
        return True

    web.odd = odd
    with pytest.raises(tq.StorageError, match=f"{web.uri} answers with more than 268435456 bytes"):
        read(web)


def test_an_error_without_an_end_is_cut(web):
    def odd(handler):
        if handler.path.startswith(TABLE):
            handler.reply(400, b"we " * (1 << 20))
        return handler.path.startswith(TABLE)

    web.odd = odd
    with pytest.raises(tq.StorageError, match="answered 400 Bad Request: we we") as caught:
        read(web)
    assert len(str(caught.value)) < 2000


def test_a_listing_has_an_end(web):
    pages = itertools.count()

    def odd(handler):
        if not handler.path.startswith("/v1/namespaces"):
            return False
        body = f'{{"namespaces": [], "next-page-token": "p{next(pages)}"}}'
        # At once: the head and the body apart would wait for each other.
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
        handler.wfile.write((head + body).encode())
        return True

    web.odd = odd
    with pytest.raises(tq.StorageError, match="has more than 1000 pages,.*rest-page-size"):
        session_of(web).list_iceberg("lake")
    assert next(pages) == 1000
