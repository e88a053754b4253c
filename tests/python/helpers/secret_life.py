"""Prints everything that a user may see of a job: the program that `test_secrets` runs and searches.

Usage: python -m secret_life FOLDER, with a line of JSON on standard input: "cases", lists of a URL,
its format, its options and how workers start (null: none); and "failures", lists of a URL, its format, its options,
the number of workers, and whether it fails only after it was planned. Files go to FOLDER.
"""

import contextlib
import json
import logging
import pickle
import sys
import traceback
import warnings

import torch

import tensorquery as tq


def show(name, *values):
    """Print values in every form that a session would."""
    for value in values:
        print(f"-- {name}", repr(value), str(value), f"{value}", sep="\n")
        with contextlib.suppress(TypeError):
            print(json.dumps(value))


def kept(folder, name, value):
    """Keep a value as checkpoints are kept."""
    torch.save(value, f"{folder}/{name}.pt")
    with open(f"{folder}/{name}.pickle", "wb") as file:
        pickle.dump(value, file)


def live(folder, number, url, kind, options, contexts):
    """Print everything that a job says of itself."""
    session = tq.Session(storage_options=options)
    getattr(session, f"register_{kind}")("t", url)
    getattr(session, f"register_{kind}")("own", url, storage_options=options)
    show("session", session, session.tables)
    for query in (session.sql("SELECT * FROM t"), session.sql("SELECT id FROM own WHERE id > 3")):
        show("query", query, query.sql, query.schema, query.explain(), query.count(), query.head(2))
        plan = query.plan_shards(world_size=2, num_workers=2, batch_size=3)
        show("plan", plan, plan.splits(), plan.to_dict(), plan.to_table())
        show("pictures", *(thing._repr_html_() for thing in (session, query, plan)))
        show("look", query.describe(), query.sample(2))
        kept(folder, f"plan{number}", plan.to_dict())
        for context in contexts:
            loader, dataset = tq.create_dataloader(
                query,
                rank=0,
                world_size=2,
                batch_size=3,
                shuffle=True,
                num_workers=1 if context else 0,
                multiprocessing_context=context,
            )
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            show("loader", loader, dataset, dataset.metrics(), state, vars(loader))
            kept(folder, f"state{number}", state)
            list(batches)
    loader, dataset = tq.create_dataloader(query, batch_size=2, shuffle="global")
    show("stage", list(loader), loader, dataset.metrics())
    for one in (session, query):
        try:
            kept(folder, "query", one)
        except Exception as error:
            told(error)


def told(error):
    """Print everything that an error says."""
    print(f"-- {type(error).__name__}", repr(error), error, error.args, sep="\n")
    print("".join(traceback.format_exception(error)))
    print(getattr(error, "__notes__", None), vars(error))


def fail(url, kind, options, workers, planned):
    """The error of a table that does not open, or of its epoch where `planned` says so."""
    try:
        loader, _ = tq.create_dataloader(
            path=url, format=kind, storage_options=options, num_workers=workers, batch_size=3
        )
        if planned:
            # The test changes the rules of the proxy meanwhile.
            print("-- planned", flush=True)
            sys.stdin.readline()
        list(loader)
    except tq.TensorQueryError as error:
        told(error)
    else:
        print(f"-- NO ERROR: {url.partition('://')[0]} {sorted(options)}")


def main(folder):
    """Run what standard input asks for."""
    logging.basicConfig(level=logging.NOTSET, stream=sys.stderr, force=True)
    warnings.simplefilter("always")
    asked = json.loads(sys.stdin.readline())
    for number, case in enumerate(asked.get("cases", [])):
        live(folder, number, *case)
    for url, kind, options, workers, planned in asked.get("failures", []):
        print(f"== {url.partition('://')[0]} {sorted(options)}")
        fail(url, kind, options, workers, planned)
    print("-- END", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
