"""Promise 8 (docs/promises.md): bad option values fail with the value, what was allowed and the fix."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorquery import errors
from tensorquery._util import options
from tensorquery.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1, 1),
        (np.int64(7), 7),
        ("4096", 4096),
        ("1B", 1),
        ("128MiB", 128 << 20),
        ("128 mib", 128 << 20),
        (" 2GB ", 2 * 10**9),
        ("500kB", 500_000),
        ("500KB", 500_000),
        ("1.5GiB", 3 << 29),
        (".5KiB", 512),
        ("1TiB", 1 << 40),
        ("3TB", 3 * 10**12),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes(text, expected):
    assert options.parse_bytes(text) == expected


@pytest.mark.parametrize(
    "bad",
    [
        0,
        -1,
        True,
        False,
        np.True_,
        1.5,
        None,
        "",
        "MiB",
        "-1MiB",
        "0",
        "0.1B",
        "1e6",
        "1,5MiB",
        "1 M iB",
        "12XB",
        "1.MiB",
        "१MiB",
        "nan",
        "9999999999TiB",
        2**63,
        [1],
        "1MiB\x00",
    ],
)
def test_bad_sizes_are_named(bad):
    with pytest.raises(ConfigError) as caught:
        options.parse_bytes(bad)
    for part in (f"split_bytes={bad!r}", "MiB", '"128MiB"'):
        assert part in str(caught.value)


@pytest.mark.slow
@given(st.text())
def test_any_text_is_a_size_or_a_config_error(text):
    try:
        size = options.parse_bytes(text)
    except ConfigError:
        return
    assert size >= 1


@given(st.integers(1, 2**40), st.sampled_from(["", "B", "KiB", "kb", "MiB", "mB"]))
def test_whole_sizes_scale_exactly(number, unit):
    factor = {"": 1, "b": 1, "kib": 1024, "kb": 1000, "mib": 1024**2, "mb": 1000**2}[unit.lower()]
    assert options.parse_bytes(f"{number}{unit}") == number * factor


def test_unknown_option_suggests_the_nearest():
    allowed = ["batch_size", "shuffle", "shuffle_seed"]
    options.reject_unknown({"shuffle": 1}, allowed, "create_dataloader")
    with pytest.raises(
        ConfigError, match="create_dataloader has no option 'bach_size'; did you mean 'batch_size'"
    ):
        options.reject_unknown({"bach_size": 1}, allowed, "create_dataloader")
    with pytest.raises(ConfigError) as caught:
        options.reject_unknown({"zzz": 1}, allowed, "create_dataloader")
    assert "did you mean" not in str(caught.value)
    assert "batch_size, shuffle, shuffle_seed" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("drop_last", 'write remainder="drop"'),
        ("seed", "write shuffle_seed="),
        ("sampler", "sample_weight="),
        ("batch_sampler", "write batch_size="),
        ("dataset", "the query is the data"),
        ("suffle", "did you mean 'shuffle'?"),
    ],
)
def test_where_it_is_known_what_was_meant_nothing_else_is_listed(name, words):
    with pytest.raises(ConfigError) as caught:
        options.reject_unknown([name], ["batch_size", "shuffle", "shuffle_seed"], "here")
    assert words in str(caught.value)
    assert "allowed" not in str(caught.value)


def test_nearest_name():
    assert options.nearest_name("SHUFLE", ["shuffle"]) == "shuffle"
    assert options.nearest_name("", ["a"]) is None
    assert options.nearest_name("a", []) is None


def test_integers():
    assert options.check_positive_int("batch_size", np.int32(3)) == 3
    assert options.check_non_negative_int("num_workers", 0) == 0
    for bad in (0, -1, True, 1.0, "3", None):
        with pytest.raises(ConfigError, match="batch_size=.* at least 1(; write 1 .*)?$"):
            options.check_positive_int("batch_size", bad)
    with pytest.raises(ConfigError, match=f"batch_size={2**63} must be at most {2**63 - 1}$"):
        options.check_positive_int("batch_size", 2**63)
    with pytest.raises(ConfigError, match=f"shuffle_seed={2**64} must be at most {2**63 - 1}$"):
        options.check_non_negative_int("shuffle_seed", 2**64)
    with pytest.raises(ConfigError, match="world_size=9 must be at most 8$"):
        options.check_positive_int("world_size", 9, most=8)
    with pytest.raises(ConfigError, match="write 8 without a fraction"):
        options.check_positive_int("batch_size", 8.0)
    with pytest.raises(ConfigError, match="at least 0"):
        options.check_non_negative_int("num_workers", -1)


def test_choices_bools_and_callables():
    assert options.check_choice("remainder", "even", ("even", "drop")) == "even"
    with pytest.raises(
        ConfigError, match="remainder='evn' must be one of 'even', 'drop'; did you mean 'even'"
    ):
        options.check_choice("remainder", "evn", ("even", "drop"))
    with pytest.raises(ConfigError, match="remainder=3"):
        options.check_choice("remainder", 3, ("even", "drop"))
    assert options.check_bool("shuffle", True) is True
    with pytest.raises(ConfigError, match="shuffle=1 must be True or False"):
        options.check_bool("shuffle", 1)
    assert options.check_callable("transform", None) is None
    assert options.check_callable("transform", len) is len
    with pytest.raises(ConfigError, match="collate_fn='x' is a str"):
        options.check_callable("collate_fn", "x")


BASES = {
    errors.ConfigError: ValueError,
    errors.TableNotFoundError: LookupError,
    errors.QueryError: Exception,
    errors.NotShardableError: errors.QueryError,
    errors.DataError: Exception,
    errors.UnsupportedTypeError: TypeError,
    errors.StorageError: OSError,
    errors.CheckpointMismatchError: ValueError,
}


@pytest.mark.parametrize("cls", BASES)
def test_errors_print_plainly_and_pickle(cls):
    message = "no table 'x'\nof \"y\"; é"
    error = cls(message)
    assert issubclass(cls, errors.TensorQueryError)
    assert issubclass(cls, BASES[cls])
    assert str(error) == message
    error.add_note("seen in worker 1")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is cls
        assert str(copy) == message
        assert copy.args == (message,)


def test_every_error_is_covered():
    assert set(errors.__all__) == {cls.__name__ for cls in BASES} | {"TensorQueryError"}
