"""`plan_cache=`: a later run over the same files reads no footer, and never plans with the metadata of other files."""

import shutil
import warnings
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import avro_files
import tensorquery as tq
from support import serve

FILES, GROUPS, ROWS = 5, 4, 30


def write(root, first=0):
    root.mkdir(exist_ok=True)
    for number in range(FILES):
        start = first + number * GROUPS * ROWS
        ids = pa.array(range(start, start + GROUPS * ROWS), pa.int64())
        pq.write_table(pa.table({"id": ids}), root / f"part-{number}.parquet", row_group_size=ROWS)
    return root


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "files")


@contextmanager
def counted(folder, tmp_path):
    """A server of the files, and a call that says how often each file was asked for since the last one."""
    log = tmp_path / "log"
    log.write_text("")
    seen = 0

    def asked():
        nonlocal seen
        lines = log.read_text().splitlines()
        new, seen = lines[seen:], len(lines)
        heads = [line for line in new if line.startswith("HEAD")]
        return len(heads), len(new) - len(heads)

    with serve(folder, log) as url:
        yield [f"{url.rstrip('/')}/part-{number}.parquet" for number in range(FILES)], asked


def plan(paths, cache, **options):
    session = tq.Session(plan_cache=cache)
    plain = {"allow_http": "true"} if paths[0].startswith("http") else None
    session.register_parquet("t", paths, storage_options=plain)
    return tq.create_dataloader("SELECT id FROM t", session=session, batch_size=16, **options)


def ids(loader):
    return [value for batch in loader for value in batch["id"].tolist()]


def entries(cache):
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_second_run_reads_no_footer(folder, tmp_path):
    cache = tmp_path / "cache"
    with counted(folder, tmp_path) as (paths, asked):
        without, _ = plan(paths, None)
        alone = asked()
        first, one = plan(paths, cache)
        assert asked() == alone
        assert alone[1] >= FILES
        second, two = plan(paths, cache)
        # Listed as ever, and nothing read.
        assert asked() == (alone[0], 0)
        assert ids(first) == ids(second) == ids(without)
    assert one.shard_plan() == two.shard_plan()
    assert one.shard_plan().to_dict() == two.shard_plan().to_dict()


@pytest.mark.slow
def test_of_create_dataloader(folder, tmp_path):
    cache = tmp_path / "a" / "cache"
    with counted(folder, tmp_path) as (paths, asked):
        options = {"storage_options": {"allow_http": "true"}, "batch_size": 16}
        # The options are the store's of the files, and no cache on disk takes them.
        first, _ = tq.create_dataloader(path=paths, plan_cache=cache, **options)
        before = asked()
        second, _ = tq.create_dataloader(path=paths, plan_cache=str(cache), **options)
        assert before[1] >= FILES
        assert asked() == (before[0], 0)
        sql = f"SELECT id FROM '{paths[0]}'"
        tq.create_dataloader(sql, plan_cache=cache, **options)
        assert asked()[1] > 0
        tq.create_dataloader(sql, plan_cache=cache, **options)
        assert asked()[1] == 0
        assert ids(first) == ids(second) == [*range(FILES * GROUPS * ROWS)]


def test_other_files_options_and_queries_have_entries_of_their_own(folder, tmp_path):
    cache = tmp_path / "cache"
    loader, _ = plan([str(folder)], cache)
    count = len(entries(cache))
    assert count == 2
    plan([str(folder)], cache)
    assert len(entries(cache)) == count
    plan([str(folder)], cache, split_rows=10)
    assert len(entries(cache)) == count + 1
    write(folder, first=100_000)
    loader, _ = plan([str(folder)], cache)
    assert len(entries(cache)) == count + 3
    assert ids(loader) == [*range(100_000, 100_000 + FILES * GROUPS * ROWS)]


def damage(path, how):
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "bit":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    else:
        path.write_bytes(b"another program's file")


@pytest.mark.parametrize("how", ["cut", "empty", "bit", "foreign"])
def test_damaged_entries_are_made_again_with_a_warning(folder, tmp_path, how):
    cache = tmp_path / "cache"
    wanted = ids(plan([str(folder)], cache)[0])
    whole = {path: path.read_bytes() for path in entries(cache)}
    for path in whole:
        damage(path, how)
        with pytest.warns(UserWarning, match="plan cache is damaged, and is made again"):
            loader, _ = plan([str(folder)], cache)
        assert ids(loader) == wanted
        assert path.read_bytes() == whole[path]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan([str(folder)], cache)


def test_an_entry_under_another_name_is_not_taken_for_it(folder, tmp_path):
    cache, other = tmp_path / "cache", write(tmp_path / "other", first=5_000)
    plan([str(folder)], cache)
    before = set(entries(cache))
    loader, _ = plan([str(other)], cache)
    wanted = ids(loader)
    new = [path for path in entries(cache) if path not in before]
    for path in new:
        shutil.copy(next(old for old in before if old.parent == path.parent), path)
    with pytest.warns(UserWarning, match="does not fit, and is made again"):
        loader, _ = plan([str(other)], cache)
    assert ids(loader) == wanted


def test_a_cache_that_cannot_be_written_costs_a_warning(folder, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tables").write_text("in the way")
    with pytest.warns(UserWarning, match="plan cache cannot be"):
        loader, _ = plan([str(folder)], cache)
    assert ids(loader) == [*range(FILES * GROUPS * ROWS)]


@pytest.mark.parametrize("place", ["", 3, "s3://bucket/*/plans"])
def test_malformed_places(place):
    with pytest.raises(tq.ConfigError, match="plan_cache"):
        tq.Session(plan_cache=place)


def test_a_place_that_is_a_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(tq.ConfigError, match="plan_cache"):
        tq.Session(plan_cache=file)


def test_it_goes_with_the_session(folder, tmp_path):
    session = tq.Session()
    with pytest.raises(tq.ConfigError, match="plan_cache goes with the session"):
        tq.create_dataloader(path=str(folder), session=session, plan_cache=tmp_path)


@pytest.mark.slow
def test_no_secret_is_kept(folder, tmp_path):
    cache = tmp_path / "cache"
    with counted(folder, tmp_path) as (paths, _):
        options = {"allow_http": "true", "user_agent": "planted-secret"}
        tq.create_dataloader(path=paths, plan_cache=cache, storage_options=options, batch_size=16)
    assert len(entries(cache)) == 2
    assert all(b"planted-secret" not in path.read_bytes() for path in entries(cache))


@pytest.mark.slow
def test_what_was_left_out_is_left_out_again(folder, tmp_path):
    cache = tmp_path / "cache"
    (folder / "part-2.parquet").write_bytes(b"PAR1 and nothing else")

    def left_out():
        session = tq.Session(plan_cache=cache)
        with pytest.warns(UserWarning, match=r"part-2\.parquet, whole file"):
            session.register_parquet(
                "t", paths, storage_options={"allow_http": "true"}, on_error="skip"
            )
        return session.tables[0].quarantined

    with counted(folder, tmp_path) as (paths, asked):
        first = left_out()
        assert asked()[1] > 0
        assert left_out() == first
        assert asked()[1] == 0
        # An entry of what was left out is none for who leaves out nothing.
        with pytest.raises(tq.DataError, match=r"part-2\.parquet"):
            plan(paths, cache)


@pytest.mark.parametrize("tolerant_first", [True, False])
def test_plans_that_leave_out_and_plans_that_raise_are_apart(tmp_path, tolerant_first):
    cache, files = tmp_path / "cache", tmp_path / "files"
    files.mkdir()
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    for number in range(2):
        rows = [{"id": 1000 * number + row} for row in range(1000)]
        avro_files.write(files / f"{number}.avro", schema, rows)
    spoilt = bytearray((files / "1.avro").read_bytes())
    # The mark after the last block: the header is whole, and so is the schema.
    spoilt[-16:] = bytes(16)
    (files / "1.avro").write_bytes(spoilt)

    def query():
        session = tq.Session(plan_cache=cache)
        session.register_avro("t", files)
        return session.sql("SELECT id FROM t")

    def skip():
        loader, dataset = tq.create_dataloader(query(), on_error="skip", batch_size=64)
        with pytest.warns(UserWarning, match=r"1\.avro"):
            found = dataset.quarantined
        assert set(range(1000)) <= set(ids(loader)) < set(range(2000))
        return found

    def refuse():
        with pytest.raises(tq.DataError, match=r"1\.avro"):
            ids(tq.create_dataloader(query(), batch_size=64)[0])

    if tolerant_first:
        first = skip()
        refuse()
        assert skip() == first
    else:
        refuse()
        skip()
        refuse()
