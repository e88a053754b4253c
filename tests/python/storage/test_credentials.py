"""Promise: a user's credential function is asked before credentials end, in every process, and they are shown
nowhere."""

import json
import pickle
import time
import urllib.request
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import tensorquery as tq
from effort import METHODS
from storage_servers import clean_environment, s3_store, web_server
from support import in_a_fork
from tensorquery.sql.credentials import Credentials

FILES = 12
TABLE = pa.table({"id": list(range(FILES * 10))})
IDS = TABLE["id"].to_pylist()
PATH = "s3://vended/t/"


@pytest.fixture(scope="module")
def store():
    with s3_store() as store:
        parts = {f"t/{n:02}.parquet": TABLE.slice(n * 10, 10) for n in range(FILES)}
        store.put("vended", parts)
        yield store


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    clean_environment(monkeypatch, tmp_path)


class Vending:
    """Gives a new key each time, valid for some seconds."""

    def __init__(self, store, seconds, shape=lambda keys, end: {**keys, "expires_at": end}):
        self.store, self.seconds, self.shape = store, seconds, shape
        self.given = []

    def __call__(self):
        keys, end = self.store.vended(self.seconds)
        self.given.append(keys)
        return self.shape(keys, end)


class Fixed:
    """Can be pickled: gives one key, and notes each call in a file."""

    def __init__(self, keys, log, end=None):
        self.keys, self.log, self.end = keys, log, end

    def __call__(self):
        with open(self.log, "a") as log:
            log.write("asked\n")
        return {**self.keys, "expires_at": self.end}


def ids(provider, store, path=PATH):
    session = tq.Session(storage_options=store.place(), credential_provider=provider)
    return sorted(session.sql(f"SELECT id FROM '{path}'").to_arrow()["id"].to_pylist())


def loaded(dataset_loader):
    return sorted(int(i) for batch in dataset_loader for i in batch["id"])


@pytest.mark.parametrize(
    "shape",
    [
        lambda keys, end: {**keys, "expires_at": end},
        lambda keys, end: {**keys, "expires_at": datetime.fromtimestamp(end, UTC)},
        lambda keys, end: (keys, int(end)),
        lambda keys, end: keys,
        lambda keys, end: {
            "AccessKeyId": keys["key"],
            "SecretAccessKey": keys["secret"],
            "SessionToken": keys["token"],
            "Expiration": datetime.fromtimestamp(end, UTC).isoformat(),
        },
        lambda keys, end: {
            "aws_access_key_id": keys["key"],
            "aws_secret_access_key": keys["secret"],
            "aws_session_token": keys["token"],
        },
    ],
    ids=["seconds", "datetime", "pair", "forever", "STS", "object_store"],
)
def test_answers_of_several_shapes(store, shape):
    provider = Vending(store, 3600, shape)
    assert ids(provider, store) == IDS
    assert len(provider.given) == 1


def test_the_url_is_told(store):
    seen = []

    def provider(url):
        seen.append(url)
        return store.vended(3600)[0]

    assert ids(provider, store) == IDS
    assert seen == ["s3://vended/"]


def test_they_replace_the_options_keys_and_say_the_place(store):
    def provider():
        return {**store.vended(3600)[0], "endpoint_url": store.uri, "region": "us-east-1"}

    session = tq.Session()
    # No word that another test could expect in a message: what was a secret once is masked ever after.
    wrong = {"key": "AKIAWRONG", "secret": "wr0ng+secret"}
    session.register_parquet("t", PATH, storage_options=wrong, credential_provider=provider)
    assert session.table("t").count() == len(IDS)


@pytest.mark.slow
def test_asked_again_before_they_end(store):
    # Renewed a quarter of their life before, which is longer than any request is under way.
    provider = Vending(store, 6)
    session = tq.Session(storage_options=store.place(), credential_provider=provider)
    session.register_parquet("t", PATH)
    loader, _ = tq.create_dataloader(table="t", session=session, batch_size=10)
    got = loaded(loader)
    time.sleep(4.7)
    got += loaded(loader)
    assert sorted(got) == sorted(IDS * 2)
    assert len(provider.given) >= 2
    assert all(seen["status"] < 400 for seen in store.guard.seen()[-2 * FILES :])


@pytest.mark.slow
def test_asked_once_more_where_the_store_refuses(store):
    provider = Vending(store, 3600)
    session = tq.Session(storage_options=store.place(), credential_provider=provider)
    query = session.sql(f"SELECT id FROM '{PATH}'")
    store.vault.revoke()
    time.sleep(1.1)
    assert sorted(query.to_arrow()["id"].to_pylist()) == IDS
    assert len(provider.given) == 2


def test_what_is_refused_for_ever_is_an_error(store):
    def provider():
        return {"key": "AKIANOBODY00", "secret": "s3cretofnobody"}

    with pytest.raises(tq.StorageError) as caught:
        ids(provider, store)
    assert "AKIANOBODY00" not in str(caught.value)
    assert "s3cretofnobody" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("context", METHODS)
def test_workers_ask_for_themselves(store, tmp_path, context):
    keys, end = store.vended(3600)
    log = tmp_path / "log"
    provider = Fixed(keys, str(log), end)
    loader, dataset = tq.create_dataloader(
        path=PATH,
        storage_options=store.place(),
        credential_provider=provider,
        batch_size=7,
        num_workers=2,
        multiprocessing_context=context,
    )
    assert loaded(loader) == IDS
    assert len(log.read_text().split()) == 3
    state = json.dumps(loader.state_dict())
    text = dataset._plan.core.recipe([0])[0]
    for secret in keys.values():
        assert secret not in state + text + repr(dataset) + repr(dataset.__dict__) + repr(
            dataset._plan.__dict__
        )


class Asking:
    """Asks a server for a new key, as any process can."""

    def __init__(self, url):
        self.url = url

    def __call__(self):
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            return json.load(answer)


@pytest.mark.slow
@pytest.mark.parametrize("context", METHODS)
def test_workers_renew_them(store, context):
    ends = []

    def vend(_):
        keys, end = store.vended(4)
        ends.append(end)
        return {**keys, "expires_at": end}

    with web_server() as web:
        web.special["/keys"] = vend
        loader, _ = tq.create_dataloader(
            path=PATH,
            storage_options=store.place(),
            credential_provider=Asking(f"{web.uri}/keys"),
            batch_size=5,
            num_workers=1,
            multiprocessing_context=context,
            persistent_workers=True,
        )
        asked = len(web.seen)
        assert loaded(loader) == IDS
        first = len(web.seen)
        # Not for each file: how often depends on how long the epoch took.
        assert asked < first < asked + FILES
        # They end, and the same worker reads the next epoch.
        time.sleep(max(0.0, ends[-1] - time.time()) + 0.1)
        assert loaded(loader) == IDS
        assert first < len(web.seen) < first + FILES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("access", ["options", "environment", "provider", "prefix"])
def test_a_forked_process_reads_tables_that_it_inherited(store, monkeypatch, access):
    """Connections and threads do not survive a fork: a forked process once waited forever."""
    own = {**store.place(), "key": store.key, "secret": store.secret}
    provider = Vending(store, 3600, lambda _, end: {**own, "expires_at": end})
    given = {
        "options": {"storage_options": own},
        "environment": {"storage_options": store.place()},
        "provider": {"credential_provider": provider},
        "prefix": {"storage_options": {"s3://vended/t/": own, **store.place()}},
    }
    if access == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret)
    session = tq.Session(**given[access])
    session.register_parquet("t", PATH)
    query = session.sql("SELECT id FROM t")

    def rows():
        return sorted(query.to_arrow()["id"].to_pylist())

    # Before the parent has read, and after; the parent's connections stay intact.
    for _ in range(2):
        assert in_a_fork(rows) == repr(IDS)
        assert rows() == IDS
    if access == "options":
        assert in_a_fork(lambda: in_a_fork(rows)) == repr(repr(IDS))


def test_keys_that_are_refused_when_a_stage_is_written(store):
    """A refused write is tried once more with newer keys, as a read is."""
    provider = Vending(store, 3600, lambda keys, end: keys)
    session = tq.Session(storage_options=store.place(), credential_provider=provider)
    session.register_table("t", TABLE)

    def ends_keys(ids):
        store.vault.revoke()
        return ids

    session.register_udf("ends_keys", ends_keys, ["int64"], "int64")
    loader, dataset = tq.create_dataloader(
        "SELECT ends_keys(id) % 10 AS id, count(*) AS n FROM t GROUP BY 1",
        session=session,
        stage_dir="s3://vended/stages",
    )
    assert dataset.stages[0].seconds is not None
    assert loaded(loader) == list(range(10))


@pytest.mark.slow
def test_a_closure_cannot_travel_to_a_spawned_worker(store):
    keys, _ = store.vended(3600)
    loader, _ = tq.create_dataloader(
        path=PATH,
        storage_options=store.place(),
        credential_provider=lambda: keys,
        num_workers=1,
        multiprocessing_context="forkserver",
    )
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        with pytest.raises(tq.ConfigError, match="cannot be pickled.*cloudpickle"):
            list(loader)
    else:
        assert loaded(loader) == IDS


class Broken(Exception):
    """An exception of a provider."""


def test_its_exception_is_the_cause(store):
    def no_luck():
        raise Broken("the vault is closed")

    with pytest.raises(tq.StorageError) as caught:
        ids(no_luck, store)
    text = str(caught.value)
    assert "no_luck" in text
    assert "Broken: the vault is closed" in text
    assert "line" in text
    assert isinstance(caught.value.__cause__, Broken)


@pytest.mark.slow
def test_its_exception_in_the_middle_of_an_epoch(store):
    def tired():
        if tired.is_planned:
            raise Broken("the vault is closed")
        keys, end = store.vended(1)
        return {**keys, "expires_at": end}

    tired.is_planned = False
    session = tq.Session(storage_options=store.place(), credential_provider=tired)
    query = session.sql(f"SELECT id FROM '{PATH}'")
    tired.is_planned = True
    time.sleep(1.2)
    for workers in (0, 1):
        loader, _ = tq.create_dataloader(query, num_workers=workers)
        with pytest.raises((tq.StorageError, RuntimeError), match="the vault is closed"):
            list(loader)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ("key", "must be a dict of storage options"),
        ({"key": b"x"}, "must be a string"),
        ({"secrt": "x"}, 'did you mean "secret"'),
        ({"expires_at": 4e9, "region": "x"}, "expires_at and none of the credentials"),
        ({"key": "a", "secret": "b", "expires_at": 1e12}, "seconds since 1970"),
        ({"key": "a", "secret": "b", "expires_at": datetime(2099, 1, 1)}, "without a time zone"),
        ({"profile": "x"}, "names a profile"),
        ({"s3://b/": {}}, "prefixes of URLs"),
    ],
)
def test_answers_that_are_none(store, answer, part):
    with pytest.raises(tq.TensorQueryError) as caught:
        ids(lambda: answer, store)
    assert part in str(caught.value)
    assert isinstance(caught.value, tq.ConfigError)


def test_ended_credentials_are_refused(store):
    past = datetime.now(UTC) - timedelta(hours=1)
    with pytest.raises(tq.StorageError, match="already ended"):
        ids(lambda: {"key": "a", "secret": "b", "expires_at": past}, store)


def test_what_is_no_provider(tmp_path):
    with pytest.raises(tq.ConfigError, match="must be a callable"):
        tq.Session(credential_provider={"key": "x"})
    with pytest.raises(tq.ConfigError, match="must take no argument"):
        tq.Session(credential_provider=lambda one, two: {})
    with pytest.raises(tq.ConfigError, match="credential_provider go"):
        tq.create_dataloader(table="t", session=tq.Session(), credential_provider=dict)


@pytest.mark.slow
def test_a_training_thread_that_holds_the_interpreter_is_no_deadlock(store):
    provider = Vending(store, 4)
    session = tq.Session(storage_options=store.place(), credential_provider=provider)
    query = session.sql(f"SELECT id FROM '{PATH}'")
    loader, _ = tq.create_dataloader(query, batch_size=1, split_rows=10)
    # So long that the provider is called by a thread of the engine while the loop computes.
    time.sleep(3.2)
    planned = len(provider.given)
    got = []
    for batch in loader:
        got.append(int(batch["id"][0]))
        sum(range(200_000))
    assert sorted(got) == IDS
    assert len(provider.given) > planned


def test_credentials_hold_no_secret_in_their_text(store):
    credentials = Credentials(Fixed({"key": "hunter22"}, "/nowhere"))
    assert "hunter22" not in repr(credentials)
    assert pickle.loads(pickle.dumps(credentials)).name == credentials.name
