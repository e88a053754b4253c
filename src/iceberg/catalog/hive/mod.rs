//! The Hive metastore: databases are namespaces, and a table's parameters say where its metadata
//! is.

mod thrift;

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use async_trait::async_trait;

use super::access::StorageAccess;
use super::connect::Client;
use super::error::{no_metadata, no_namespace, not_found};
use super::metadata::load_known;
use super::registered::LoadedTable;
use crate::{Error, Result};
use thrift::{Value, ask, call};

/// How long a metastore may take to be reached, and to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The field of a table with its parameters, in Hive's `hive_metastore.thrift`.
const PARAMETERS: i16 = 9;

/// The exception of `get_table` for a table or database that is not there.
const NO_SUCH_OBJECT: i16 = 2;

/// The parameter that Iceberg keeps in a table of the metastore.
const METADATA_LOCATION: &str = "metadata_location";

/// One metastore, or several equivalent ones. Each question opens a connection of its own.
pub(super) struct HiveClient {
    addresses: Vec<String>,
    framed: bool,
    access: StorageAccess,
}

impl HiveClient {
    pub(super) fn try_new(properties: &BTreeMap<String, String>) -> Result<Self> {
        let uris = properties.get("uri").map(String::as_str).unwrap_or_default();
        let mut addresses = Vec::new();
        for uri in uris.split(',').map(str::trim).filter(|uri| !uri.is_empty()) {
            let address = uri.strip_prefix("thrift://").unwrap_or(uri).trim_end_matches('/');
            if !address.contains(':') {
                return Err(Error::config(format!(
                    "the uri of a Hive metastore must be thrift://host:port, not {uri:?}"
                )));
            }
            addresses.push(address.to_owned());
        }
        let framed = match properties.get("thrift_transport").map(String::as_str) {
            None | Some("buffered") => false,
            Some("framed") => true,
            Some(other) => {
                return Err(Error::config(format!(
                    "thrift_transport must be \"buffered\" or \"framed\", not {other:?}"
                )));
            }
        };
        Ok(Self { addresses, framed, access: StorageAccess::new(properties) })
    }

    /// The result of a call: of the first metastore that can be reached.
    async fn ask(&self, method: &'static str, arguments: &[&str]) -> Result<Value> {
        let (addresses, framed) = (self.addresses.clone(), self.framed);
        let call = call(method, arguments);
        let asked = tokio::task::spawn_blocking(move || {
            let mut failure = None;
            for address in &addresses {
                match ask_one(address, &call, framed) {
                    Ok(value) => return Ok(value),
                    Err(error) => failure = Some((address.clone(), error)),
                }
            }
            Err(failure)
        });
        match asked.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Some((address, error)))) => Err(Error::storage(format!(
                "the Hive metastore at {address} did not answer as it should: {error}; check the property uri"
            ))),
            Ok(Err(None)) => {
                Err(Error::config("a Hive catalog needs the property uri, thrift://host:port"))
            }
            Err(stopped) => {
                Err(Error::storage("a request to the catalog stopped").with_source(stopped))
            }
        }
    }

    async fn names(&self, method: &'static str, arguments: &[&str]) -> Result<Vec<String>> {
        let result = self.ask(method, arguments).await?;
        match result.field(0) {
            Some(Value::List(names)) => Ok(names.iter().filter_map(Value::text).collect()),
            _ => Err(refused(method, &result)),
        }
    }
}

fn ask_one(address: &str, call: &[u8], framed: bool) -> io::Result<Value> {
    let mut failure = None;
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return ask(&mut Connection(BufReader::new(stream)), call, framed);
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}

/// A connection read through a buffer.
struct Connection(BufReader<TcpStream>);

impl Read for Connection {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

/// An answer that is an exception: their first field is a message.
fn refused(method: &str, result: &Value) -> Error {
    let told = match result {
        Value::Struct(fields) => fields.iter().find_map(|(_, value)| value.field(1)?.text()),
        _ => None,
    };
    Error::storage(format!(
        "the Hive metastore refuses {method}: {}",
        told.unwrap_or_else(|| "it does not say why".to_owned())
    ))
}

#[async_trait]
impl Client for HiveClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        if !parent.is_empty() {
            return Ok(Vec::new());
        }
        let names = self.names("get_all_databases", &[]).await?;
        Ok(names.into_iter().map(|name| vec![name]).collect())
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let [database] = namespace else { return Err(no_namespace(namespace)) };
        let tables = self.names("get_all_tables", &[database]).await;
        if !matches!(&tables, Ok(tables) if !tables.is_empty()) {
            // A database that is not there has no tables, or is an error: it depends on the
            // version.
            let databases = self.names("get_all_databases", &[]).await?;
            if !databases.contains(database) {
                return Err(no_namespace(namespace));
            }
        }
        tables
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        let [database] = namespace else { return Err(not_found(namespace, name)) };
        let result = self.ask("get_table", &[database, name]).await?;
        let Some(table) = result.field(0) else {
            return Err(match result.field(NO_SUCH_OBJECT) {
                Some(_) => not_found(namespace, name),
                None => refused("get_table", &result),
            });
        };
        let location = match table.field(PARAMETERS) {
            Some(Value::Map(pairs)) => pairs.iter().find_map(|(key, value)| {
                (key.text().as_deref() == Some(METADATA_LOCATION)).then(|| value.text()).flatten()
            }),
            _ => None,
        };
        let Some(location) = location else {
            return Err(no_metadata(namespace, name));
        };
        load_known(location, self.access.open()?, self.access.clone()).await
    }
}
