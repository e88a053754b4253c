//! Options in users' spellings are understood one by one.

use super::super::options::is_credential;
use super::*;

fn translated(scheme: Scheme, pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>> {
    let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Ok(translate(scheme, &pairs.collect())?.into_iter().collect())
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_target_and_credential_is_an_option_in_its_own_spelling() {
    let own = [PROFILE, GOOGLE_TOKEN];
    for scheme in [Scheme::S3, Scheme::Gcs, Scheme::Azure] {
        let names = ["aws_access_key_id", "google_service_account", "azure_storage_sas_key"];
        assert!(names.iter().any(|name| is_credential(scheme, name)));
        for (_, key) in table(scheme) {
            let special = special(key, key, "true");
            let said = special.map(|meaning| meaning.said).unwrap_or_default();
            for (key, _) in said.iter().filter(|(key, _)| !own.contains(&key.as_str())) {
                assert_eq!(canonical(scheme, key).as_deref(), Some(key.as_str()));
            }
        }
    }
    for name in ["aws_access_key_id", "aws_session_token", "aws_skip_signature"] {
        assert_eq!(canonical(Scheme::S3, name).as_deref(), Some(name));
    }
    for name in ["account_key", "sas_token", "bearer_token", "client_secret", "client_id"] {
        let name = canonical(Scheme::Azure, name).unwrap();
        assert!(is_credential(Scheme::Azure, &name), "{name}");
    }
    for name in ["service_account", "service_account_key", "application_credentials"] {
        let name = canonical(Scheme::Gcs, name).unwrap();
        assert!(is_credential(Scheme::Gcs, &name), "{name}");
    }
}

#[test]
fn s3fs_is_understood() {
    let found = translated(
        Scheme::S3,
        &[
            ("key", "id"),
            ("Secret", "s"),
            ("TOKEN", "t"),
            ("client_kwargs.endpoint_url", "http://h:9000/"),
            ("client_kwargs.region_name", "eu-west-1"),
            ("config_kwargs.s3.addressing_style", "path"),
            ("config_kwargs.connect_timeout", "1.5"),
            ("requester_pays", "true"),
        ],
    );
    let expected = pairs(&[
        ("allow_http", "true"),
        ("aws_access_key_id", "id"),
        ("aws_endpoint_url_s3", "http://h:9000"),
        ("aws_region", "eu-west-1"),
        ("aws_request_payer", "true"),
        ("aws_secret_access_key", "s"),
        ("aws_session_token", "t"),
        ("aws_virtual_hosted_style_request", "false"),
        ("connect_timeout", "1500ms"),
    ]);
    assert_eq!(found.unwrap(), expected);
    for (options, part) in [
        ([("key", "a"), ("aws_access_key_id", "b")], "two names of one"),
        ([("region_name", "a"), ("REGION", "b")], "two names of one"),
        ([("key", "a"), ("default_fill_cache", "b")], "tunes a library"),
        ([("key", "a"), ("client_kwargs.regoin_name", "b")], "client_kwargs.region_name"),
        ([("key", "a"), ("config_kwargs.signature_version", "s3")], "version 4"),
    ] {
        let error = translated(Scheme::S3, &options).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn gcsfs_and_adlfs_are_understood() {
    let found = translated(Scheme::Gcs, &[("token", "anon"), ("project", "p")]).unwrap();
    assert_eq!(found, pairs(&[("google_skip_signature", "true")]));
    let found = translated(Scheme::Gcs, &[("token", "{\"type\": \"service_account\"}")]);
    assert_eq!(found.unwrap()[0].0, "google_service_account_key");
    assert!(translated(Scheme::Gcs, &[("token", "cloud")]).unwrap().is_empty());
    let error = translated(Scheme::Gcs, &[("token", "/no/such/s3cret")]).unwrap_err();
    assert!(!error.to_string().contains("s3cret"), "{error}");

    let text = "DefaultEndpointsProtocol=http;AccountName=dev;AccountKey=a2V5==;\
                BlobEndpoint=http://127.0.0.1:10000/dev;";
    let found = translated(Scheme::Azure, &[("connection_string", text)]).unwrap();
    let expected = [
        ("allow_http", "true"),
        ("azure_storage_account_key", "a2V5=="),
        ("azure_storage_account_name", "dev"),
        ("azure_storage_endpoint", "http://127.0.0.1:10000/dev"),
    ];
    assert_eq!(found, pairs(&expected));
    let found = translated(Scheme::Azure, &[("credential", "sv=1&sig=x")]).unwrap();
    assert_eq!(found, pairs(&[("azure_storage_sas_key", "sv=1&sig=x")]));
}

#[test]
fn headers_go_to_http_servers() {
    let given = [("headers.X-Team", "a"), ("client_kwargs.headers.Authorization", "b")];
    let found = translated(Scheme::Http, &given).unwrap();
    assert_eq!(found, pairs(&[("headers.authorization", "b"), ("headers.x-team", "a")]));
    let error = translated(Scheme::Http, &[("client_kwargs.auth", "x")]).unwrap_err();
    assert!(error.to_string().contains("client_kwargs.auth"), "{error}");
}
