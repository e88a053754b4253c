//! A REST catalog on this machine whose answers have damaged parts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};
use tensorquery::Result;
use tensorquery::session::{PlanOptions, Session, SessionOptions};
use tensorquery::storage::StorageOptions;

use crate::choices::Choices;
use crate::files::rows;
use crate::iceberg::{Table, look};
use crate::json::damaged;
use crate::panics::answer;

/// Statuses of answers; none that asks the client to wait and try again, which takes seconds.
const STATUSES: &[u16] = &[200, 404, 401, 403, 400, 406, 500, 302, 419, 204];

/// Names that a catalog's answers set.
const TEXTS: &[&str] = &[
    "uri",
    "prefix",
    "token",
    "credential",
    "scope",
    "oauth2-server-uri",
    "v1/oauth/tokens",
    "namespace-separator",
    "%1F",
    "rest-page-size",
    "snapshot-loading-mode",
    "refs",
    "header.x",
    "warehouse",
    "trusted-origins",
    "client.refresh-credentials-endpoint",
    "gcs.oauth2.refresh-credentials-endpoint",
    "s3.region",
    "s3.access-key-id",
    "s3.session-token-expires-at-ms",
    "adls.sas-token.x",
    "gcs.oauth2.token",
    "NoSuchNamespaceException",
    "\r\nx: y",
];

/// What the server answers to each question.
#[derive(Default)]
struct Answers {
    by_kind: BTreeMap<&'static str, (u16, Vec<u8>)>,
}

static ANSWERS: Mutex<Answers> = Mutex::new(Answers { by_kind: BTreeMap::new() });

/// Asks a catalog for its configuration, a token, its namespaces and tables, and reads one.
pub fn ask_rest_catalog(bytes: &[u8]) {
    let choices = &mut Choices::new(bytes);
    let uri = server();
    let table = Table::new(1 + choices.below(3));
    let look = look(choices);
    let has_credential = choices.below(2) == 1;
    let list = table.write_manifests(&mut Choices::new(&[]), &[]);
    let more: Vec<&str> = TEXTS.iter().copied().chain([uri, list.as_str()]).collect();
    let endpoint = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials";
    let texts = [
        (
            "config",
            json!({"defaults": {"scope": "catalog", "rest-page-size": 10}, "overrides": {"prefix": "p"}, "endpoints": [endpoint]}),
        ),
        ("tokens", json!({"access_token": "t", "token_type": "bearer", "expires_in": 3600})),
        ("namespaces", json!({"namespaces": [["n"], ["n", "m"]], "next-page-token": null})),
        (
            "tables",
            json!({"identifiers": [{"namespace": ["n"], "name": "t"}], "next-page-token": ""}),
        ),
        (
            "credentials",
            json!({"storage-credentials": [{"prefix": "s3://b", "config": {"s3.access-key-id": "k"}}], "config": {}}),
        ),
        (
            "table",
            json!({
                "metadata-location": list, "metadata": table.metadata(&list), "config": {"s3.region": "x"},
                "storage-credentials": [{"prefix": "s3://b/t", "config": {"s3.access-key-id": "k", "s3.secret-access-key": "x"}}],
            }),
        ),
    ];
    let mut answers = Answers::default();
    for (kind, document) in texts {
        let status = if choices.strikes() { *choices.one_of(STATUSES) } else { 200 };
        let refusal =
            json!({"error": {"message": "no", "type": "NoSuchTableException", "code": status}});
        let document = if status < 300 { document } else { refusal };
        let body = damaged(document, choices, &more).to_string().into_bytes();
        answers.by_kind.insert(kind, (status, choices.bytes(body)));
    }
    *ANSWERS.lock().unwrap_or_else(PoisonError::into_inner) = answers;
    let mut properties = vec![("type", "rest"), ("uri", uri), ("warehouse", "w")];
    if has_credential {
        properties.push(("credential", "id:secret"));
    }
    let properties =
        properties.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let properties: BTreeMap<String, String> = properties.collect();
    answer(async {
        let session = Session::try_new(SessionOptions::default())?;
        session.register_catalog("c", properties, StorageOptions::default())?;
        let catalog = session.catalog("c")?;
        let names = ["n".to_owned()];
        let listed: [Result<usize>; 2] = [
            catalog.list_namespaces(&[]).await.map(|names| names.len()),
            catalog.list_tables(&names).await.map(|names| names.len()),
        ];
        drop(listed);
        let sql = format!("SELECT * FROM c.n.{look}");
        let _: Result<u64> = rows(&session, &sql, &PlanOptions::default()).await;
        rows(&session, "SELECT * FROM c.n.t", &PlanOptions::default()).await?;
        Ok(())
    });
}

/// The address of the server, which starts when it is asked for.
fn server() -> &'static str {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    ADDRESS.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine is free");
        let address = listener.local_addr().expect("a listener has an address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Whoever goes away ends the connection.
                std::thread::spawn(move || serve(stream));
            }
        });
        format!("http://{address}")
    })
}

/// Answers the requests of one connection.
fn serve(stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut requests = BufReader::new(stream.try_clone()?);
    let mut to = stream;
    loop {
        let (mut first, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
            if first.is_empty() {
                first = line;
            }
        }
        std::io::copy(&mut requests.by_ref().take(length), &mut std::io::sink())?;
        let path = first.split(' ').nth(1).unwrap_or_default();
        let (status, body) = told(path);
        let place = if status == 302 { "location: /v1/config\r\n" } else { "" };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n{place}content-length: {length}\r\n\r\n"
        );
        to.write_all(head.as_bytes())?;
        if status != 204 {
            to.write_all(&body)?;
        }
    }
}

/// Status and body for a path.
fn told(path: &str) -> (u16, Vec<u8>) {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    let kind = match parts.as_slice() {
        [.., "config"] => "config",
        [.., "tokens"] => "tokens",
        [.., "credentials"] => "credentials",
        [.., "namespaces"] => "namespaces",
        [.., "tables"] => "tables",
        [.., "tables", _] => "table",
        _ => return (404, Value::Null.to_string().into_bytes()),
    };
    let answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (status, body) = answers.by_kind.get(kind).cloned().unwrap_or((404, Vec::new()));
    // An answer without a body has no length either.
    (status, if status == 204 { Vec::new() } else { body })
}
