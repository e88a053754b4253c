//! The credentials that a Unity Catalog gives for the files of a table, for a while.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::connect::on_io;
use super::super::rest::Refusal;
use super::client::UnityClient;
use crate::bounds::check_json;
use crate::runtime::PerProcess;
use crate::storage::{
    ForeignCredentials, Location, Scheme, StorageOptions, note_secrets, redact, shown,
};
use crate::{Error, Result};

/// Asks a Unity Catalog for the credentials of one table's files.
///
/// The serialised form holds the catalog's secrets: it is for a worker process, and never for a
/// checkpoint or a log. The `Debug` form shows none.
#[derive(Clone, Serialize, Deserialize)]
pub struct UnityCredentials {
    properties: BTreeMap<String, String>,
    table: String,
    table_id: String,
    #[serde(skip)]
    client: Arc<PerProcess<UnityClient>>,
}

/// `TemporaryCredentials` of the specification.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    aws_temp_credentials: Option<AwsKeys>,
    #[serde(default)]
    azure_user_delegation_sas: Option<AzureSas>,
    #[serde(default)]
    azure_aad: Option<AzureToken>,
    #[serde(default)]
    gcp_oauth_token: Option<GcpToken>,
    /// Milliseconds since 1970-01-01 UTC.
    #[serde(default)]
    expiration_time: Option<i64>,
}

#[derive(Deserialize)]
struct AwsKeys {
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    session_token: Option<String>,
}

#[derive(Deserialize)]
struct AzureSas {
    sas_token: String,
}

#[derive(Deserialize)]
struct AzureToken {
    aad_token: String,
}

#[derive(Deserialize)]
struct GcpToken {
    oauth_token: String,
}

impl UnityCredentials {
    /// Of the table of this id, over a connection that is open already.
    pub(super) fn new(
        properties: BTreeMap<String, String>,
        table: String,
        table_id: String,
        client: UnityClient,
    ) -> Self {
        Self { properties, table, table_id, client: Arc::new(PerProcess::of(client)) }
    }

    /// These credentials, where a Unity Catalog gives them.
    pub fn of(credentials: &dyn ForeignCredentials) -> Option<&Self> {
        let any: &dyn Any = credentials;
        any.downcast_ref()
    }

    async fn client(&self) -> Result<UnityClient> {
        // The options of the stores are with whoever opens them.
        let options = StorageOptions::default();
        let connect = async { UnityClient::try_new("", &self.properties, &options) };
        self.client.get_or_make(connect).await
    }

    async fn answer(&self) -> Result<Vec<u8>> {
        let (client, table_id) = (self.client().await?, self.table_id.clone());
        let asked = on_io(async move { Ok(client.credentials(&table_id).await) }).await?;
        let error = match asked {
            Ok(answer) => return Ok(answer),
            Err(Refusal::NotFound { .. }) => Error::storage(format!(
                "the table {} is no longer in the catalog, which gives no credentials for its files",
                self.table
            )),
            Err(refusal) => refusal.into(),
        };
        // A server may repeat what it refuses.
        let (text, kind) = (error.to_string(), error.kind());
        let safe = redact(&text, &self.properties);
        let error = if safe == text { error } else { Error::new(kind, safe) };
        Err(error.with_context("credentials for table", &self.table))
    }
}

impl fmt::Debug for UnityCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnityCredentials")
            .field("properties", &shown(&self.properties))
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ForeignCredentials for UnityCredentials {
    fn name(&self) -> String {
        self.table.clone()
    }

    fn describe(&self) -> String {
        format!("the Unity Catalog of table {}", self.table)
    }

    /// The user's own credentials come first.
    fn is_fallback(&self) -> bool {
        true
    }

    async fn ask(&self, url: &str) -> Result<BTreeMap<String, Value>> {
        let scheme = Location::parse(url)?.scheme();
        options_of(&self.answer().await?, scheme).map_err(|error| {
            error.with_context("url", url).with_context("credentials for table", &self.table)
        })
    }
}

/// An answer as options of a kind of store.
fn options_of(answer: &[u8], scheme: Scheme) -> Result<BTreeMap<String, Value>> {
    check_json(answer)?;
    // The text holds the credentials, so that no message repeats it.
    let answer: Answer = serde_json::from_slice(answer).map_err(|_| {
        Error::storage("the answer of the Unity Catalog holds no temporary credentials")
    })?;
    let mut options = BTreeMap::new();
    let mut put = |name: &str, value: String| {
        options.insert(name.to_owned(), value);
    };
    let wanted = match scheme {
        Scheme::S3 => {
            if let Some(keys) = answer.aws_temp_credentials {
                put("aws_access_key_id", keys.access_key_id);
                put("aws_secret_access_key", keys.secret_access_key);
                if let Some(token) = keys.session_token {
                    put("aws_session_token", token);
                }
            }
            "aws_temp_credentials"
        }
        Scheme::Gcs => {
            if let Some(token) = answer.gcp_oauth_token {
                put("google_bearer_token", token.oauth_token);
            }
            "gcp_oauth_token"
        }
        _ => {
            match (answer.azure_user_delegation_sas, answer.azure_aad) {
                (Some(sas), _) => put("azure_storage_sas_key", sas.sas_token),
                (None, Some(token)) => put("azure_storage_token", token.aad_token),
                (None, None) => {}
            }
            "azure_user_delegation_sas"
        }
    };
    if options.values().all(String::is_empty) {
        return Err(Error::storage(format!(
            "the answer of the Unity Catalog has no {wanted}; ask its owner whether it gives credentials for the \
             table's location to you, or pass your own as storage_options="
        )));
    }
    note_secrets(&options);
    if let Some(end) = answer.expiration_time.filter(|end| *end > 0) {
        options.insert("expires_at_ms".to_owned(), end.to_string());
    }
    Ok(options.into_iter().map(|(name, value)| (name, Value::String(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(answer: &str, scheme: Scheme) -> Result<Vec<(String, String)>> {
        let options = options_of(answer.as_bytes(), scheme)?;
        let text = |value: Value| value.as_str().map(str::to_owned).unwrap_or_default();
        Ok(options.into_iter().map(|(name, value)| (name, text(value))).collect())
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn each_form_of_credentials_becomes_options_of_its_store() {
        let aws = r#"{"aws_temp_credentials": {"access_key_id": "A", "secret_access_key": "b2b2b2",
            "session_token": "c3c3c3", "access_point": null}, "expiration_time": 17, "url": "s3://b/t"}"#;
        let expected = pairs(&[
            ("aws_access_key_id", "A"),
            ("aws_secret_access_key", "b2b2b2"),
            ("aws_session_token", "c3c3c3"),
            ("expires_at_ms", "17"),
        ]);
        assert_eq!(told(aws, Scheme::S3).unwrap(), expected);
        let azure = r#"{"azure_user_delegation_sas": {"sas_token": "sv=1&sig=abcdef"}}"#;
        let expected = pairs(&[("azure_storage_sas_key", "sv=1&sig=abcdef")]);
        assert_eq!(told(azure, Scheme::Azure).unwrap(), expected);
        let token = r#"{"azure_aad": {"aad_token": "aadaad"}, "expiration_time": 0}"#;
        let expected = pairs(&[("azure_storage_token", "aadaad")]);
        assert_eq!(told(token, Scheme::Azure).unwrap(), expected);
        let google =
            r#"{"gcp_oauth_token": {"oauth_token": "ya29.x"}, "aws_temp_credentials": null}"#;
        let expected = pairs(&[("google_bearer_token", "ya29.x")]);
        assert_eq!(told(google, Scheme::Gcs).unwrap(), expected);
    }

    #[test]
    fn an_answer_without_credentials_is_told_and_none_is_repeated() {
        for (answer, scheme) in [
            (r#"{"gcp_oauth_token": {"oauth_token": "ya29.x"}}"#, Scheme::S3),
            ("{}", Scheme::Azure),
            (r#"{"gcp_oauth_token": "ya29.x"}"#, Scheme::Gcs),
            (r#"{"aws_temp_credentials": {"access_key_id": "ya29.x"}}"#, Scheme::S3),
        ] {
            let error = told(answer, scheme).unwrap_err().to_string();
            assert!(error.contains("Unity Catalog"), "{error}");
            assert!(!error.contains("ya29"), "{error}");
        }
    }
}
