//! The REST catalog: configuration, tokens, pages, names, and what its refusals become.

use std::sync::atomic::{AtomicUsize, Ordering};

use tensorquery::ErrorKind;
use tensorquery::iceberg::catalog::IcebergCatalog;

use super::server::{Request, Server};
use super::{metadata, names, properties};
use crate::support::block_on;

/// A catalog with the namespaces `a`, `b` and `a.b`, in pages of one, and the table `a.b.t 1`.
fn answer(request: &Request) -> (u16, String) {
    let ok = |body: &str| (200, body.to_owned());
    let missing = |kind: &str| {
        (404, format!(r#"{{"error": {{"message": "no", "type": "{kind}", "code": 404}}}}"#))
    };
    match request.target.as_str() {
        "/v1/config?warehouse=w%20h" | "/v1/config" => ok(
            r#"{"defaults": {"scope": "x"}, "overrides": {"prefix": "p/1", "s3.region": "eu-west-1"}}"#,
        ),
        "/v1/p/1/namespaces" => ok(r#"{"namespaces": [["a"]], "next-page-token": "2 &"}"#),
        "/v1/p/1/namespaces?pageToken=2%20%26" => ok(r#"{"namespaces": [["b"]]}"#),
        "/v1/p/1/namespaces?parent=a" => {
            ok(r#"{"namespaces": [["a", "b"]], "next-page-token": null}"#)
        }
        "/v1/p/1/namespaces/a%1Fb/tables" => {
            ok(r#"{"identifiers": [{"namespace": ["a", "b"], "name": "t 1"}]}"#)
        }
        "/v1/p/1/namespaces/a%1Fb/tables/t%201" => {
            ok(&format!(r#"{{"metadata-location": "/m.json", "metadata": {}}}"#, metadata("/t")))
        }
        target if target.starts_with("/v1/p/1/namespaces/a%1Fb/tables/") => {
            missing("NoSuchTableException")
        }
        _ => missing("NoSuchNamespaceException"),
    }
}

fn catalog(server: &Server, more: &[(&str, &str)]) -> IcebergCatalog {
    let mut pairs = vec![("type", "rest"), ("uri", server.url.as_str())];
    pairs.extend(more);
    IcebergCatalog::try_new("lake", properties(&pairs)).unwrap()
}

#[test]
fn names_pages_and_prefixes_are_those_of_the_specification() {
    let server = Server::start(answer);
    let headers = [("warehouse", "w h"), ("header.X-Tenant", "acme"), ("token", "secret-1")];
    let catalog = catalog(&server, &headers);
    block_on(async {
        assert_eq!(catalog.list_namespaces(&[]).await.unwrap(), [names("a"), names("b")]);
        assert_eq!(catalog.list_namespaces(&names("a")).await.unwrap(), [names("a.b")]);
        assert_eq!(catalog.list_tables(&names("a.b")).await.unwrap(), ["t 1"]);
        let table = catalog.load_table(&names("a.b"), "t 1").await.unwrap();
        assert_eq!(table.metadata_location.as_deref(), Some("/m.json"));
        assert_eq!(table.metadata.location(), "/t");
        let shown = format!("{table:?}");
        assert!(!shown.contains("secret-1") && shown.contains("eu-west-1"), "{shown}");
    });
    // One connection, one configuration, and no table loaded before it was asked for.
    assert_eq!(server.asked("/v1/config").len(), 1);
    assert_eq!(server.asked("/tables/").len(), 1);
    for request in server.asked("/") {
        assert_eq!(request.header("authorization"), "Bearer secret-1");
        assert_eq!(request.header("x-tenant"), "acme");
        assert_eq!(request.header("x-iceberg-access-delegation"), "vended-credentials");
    }
}

#[test]
fn unknown_names_are_answered_with_those_that_exist() {
    let server = Server::start(answer);
    let catalog = catalog(&server, &[("header.X-Iceberg-Access-Delegation", "remote-signing")]);
    block_on(async {
        let error = catalog.load_table(&names("a.b"), "t1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TableNotFound);
        let text = error.to_string();
        assert!(text.contains("unknown table a.b.t1; did you mean \"t 1\"?"), "{text}");
        let error = catalog.load_table(&names("c"), "t").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TableNotFound);
        assert!(error.to_string().contains("the namespaces are a, b"), "{error}");
        let error = catalog.list_tables(&names("c")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TableNotFound);
    });
    let sent = server.asked("/v1/config");
    assert_eq!(sent[0].header("x-iceberg-access-delegation"), "remote-signing");
}

#[test]
fn tokens_are_fetched_and_fetched_again_when_they_are_refused() {
    static TOKENS: AtomicUsize = AtomicUsize::new(0);
    let server = Server::start(|request| {
        if request.target == "/v1/oauth/tokens" {
            let number = TOKENS.fetch_add(1, Ordering::SeqCst) + 1;
            return (200, format!(r#"{{"access_token": "t{number}", "expires_in": 3600}}"#));
        }
        // The first token ends after the configuration.
        let is_listing = request.target.contains("namespaces");
        match request.header("authorization") {
            "Bearer t1" if is_listing => (419, r#"{"error": {"message": "expired"}}"#.into()),
            "Bearer t1" | "Bearer t2" => answer(request),
            _ => (401, String::new()),
        }
    });
    let catalog =
        catalog(&server, &[("credential", "id:se:cr&t"), ("scope", "S"), ("audience", "A")]);
    assert_eq!(block_on(catalog.list_namespaces(&[])).unwrap().len(), 2);
    let asked = server.asked("/v1/oauth/tokens");
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(
        asked[0].body,
        "grant_type=client_credentials&client_id=id&client_secret=se%3Acr%26t&scope=S&audience=A"
    );
    assert_eq!(asked[0].method, "POST");
}

#[test]
fn refusals_name_the_properties_and_no_secret() {
    let server = Server::start(|request| {
        let given = request.header("authorization").to_owned() + &request.body;
        (401, format!(r#"{{"error": {{"message": "not with {given}"}}}}"#))
    });
    for pairs in [[("token", "hunter2")], [("credential", "id:hunter2")]] {
        let error = block_on(catalog(&server, &pairs).list_namespaces(&[])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage);
        let text = error.to_string();
        assert!(text.contains("401") && text.contains("credential"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn a_server_that_is_not_there_is_a_storage_error() {
    let pairs = properties(&[("uri", "http://127.0.0.1:1"), ("token", "hunter2")]);
    let catalog = IcebergCatalog::try_new("lake", pairs).unwrap();
    let error = block_on(catalog.list_namespaces(&[])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage);
    let text = error.to_string();
    assert!(text.contains("cannot be reached") && text.contains("127.0.0.1:1"), "{text}");
}

#[test]
fn a_busy_server_is_asked_again() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let server = Server::start(|request| match ASKED.fetch_add(1, Ordering::SeqCst) {
        0 | 2 => (503, String::new()),
        _ => answer(request),
    });
    let catalog = catalog(&server, &[]);
    assert_eq!(block_on(catalog.list_namespaces(&[])).unwrap().len(), 2);
}

#[test]
fn requests_can_be_signed_for_aws() {
    let server = Server::start(answer);
    let catalog = catalog(
        &server,
        &[
            ("rest.sigv4-enabled", "true"),
            ("rest.signing-name", "s3tables"),
            ("rest.signing-region", "eu-west-1"),
            ("client.access-key-id", "AKID"),
            ("client.secret-access-key", "hunter2"),
        ],
    );
    assert_eq!(block_on(catalog.list_tables(&names("a.b"))).unwrap(), ["t 1"]);
    let request = &server.asked("/tables")[0];
    let signed = request.header("authorization");
    assert!(signed.starts_with("AWS4-HMAC-SHA256 Credential=AKID/"), "{signed}");
    assert!(signed.contains("/eu-west-1/s3tables/aws4_request"), "{signed}");
}
