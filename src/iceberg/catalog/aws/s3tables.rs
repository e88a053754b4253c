//! Amazon S3 Tables: a table bucket is a catalog.

use std::collections::BTreeMap;

use async_trait::async_trait;
use http::Method;
use serde_json::Value;

use super::client::{AwsClient, Refusal, Request};
use super::properties::{s3tables_files, service_signer, table_bucket};
use crate::Result;
use crate::iceberg::catalog::access::StorageAccess;
use crate::iceberg::catalog::connect::Client;
use crate::iceberg::catalog::error::{no_metadata, no_namespace, not_found};
use crate::iceberg::catalog::metadata::load_known;
use crate::iceberg::catalog::registered::LoadedTable;
use crate::iceberg::catalog::rest::encode;

/// S3 Tables by its REST interface:
/// <https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_S3_Tables.html>.
pub(in crate::iceberg::catalog) struct S3TablesClient {
    client: AwsClient,
    /// The ARN of the table bucket, encoded for a URL.
    bucket: String,
    access: StorageAccess,
}

impl S3TablesClient {
    pub(in crate::iceberg::catalog) fn try_new(
        properties: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let get = |name: &str| properties.get(name).filter(|text| !text.is_empty()).cloned();
        let arn = table_bucket(properties)?;
        let endpoint = get("s3tables.endpoint").or(get("uri"));
        let region = arn.split(':').nth(3).filter(|region| !region.is_empty());
        let signer = service_signer("s3tables", region, properties)?;
        let (name, endpoint) = ("Amazon S3 Tables", endpoint.as_deref());
        let client = AwsClient::try_new(name, "s3tables", endpoint, signer, properties)?;
        let access = StorageAccess::new(&s3tables_files(properties));
        Ok(Self { client, bucket: encode(arn), access })
    }

    /// All pages of a listing, which each answer has under `field`.
    async fn pages(&self, path: &str, field: &str) -> Result<Vec<Value>, Refusal> {
        let request = |token: Option<&str>| match token {
            Some(token) => {
                let join = if path.contains('?') { '&' } else { '?' };
                get(format!("{path}{join}continuationToken={}", encode(token)))
            }
            None => get(path.to_owned()),
        };
        self.client.pages(field, "continuationToken", request).await
    }
}

fn get(path: String) -> Request {
    let headers = vec![("accept", "application/json".to_owned())];
    Request { method: Method::GET, path, headers, body: String::new() }
}

#[async_trait]
impl Client for S3TablesClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        // Namespaces do not nest.
        if !parent.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.pages(&format!("/namespaces/{}", self.bucket), "namespaces").await?;
        let names = |one: &Value| -> Option<Vec<String>> {
            one["namespace"]
                .as_array()?
                .iter()
                .map(|part| Some(part.as_str()?.to_owned()))
                .collect()
        };
        Ok(found.iter().filter_map(names).collect())
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let [name] = namespace else { return Err(no_namespace(namespace)) };
        let path = format!("/tables/{}?namespace={}", self.bucket, encode(name));
        match self.pages(&path, "tables").await {
            Ok(tables) => Ok(tables
                .iter()
                .filter_map(|table| Some(table["name"].as_str()?.to_owned()))
                .collect()),
            // Either the namespace is unknown or the bucket, which the other list is refused for.
            Err(Refusal::NotFound(_)) => {
                self.list_namespaces(&[]).await?;
                Err(no_namespace(namespace))
            }
            Err(Refusal::Other(error)) => Err(error),
        }
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        let [one] = namespace else { return Err(no_namespace(namespace)) };
        let path = format!(
            "/get-table?tableBucketARN={}&namespace={}&name={}",
            self.bucket,
            encode(one),
            encode(name)
        );
        let answer = match self.client.send(get(path)).await {
            Ok(answer) => answer,
            Err(Refusal::NotFound(_)) => return Err(not_found(namespace, name)),
            Err(Refusal::Other(error)) => return Err(error),
        };
        match answer["metadataLocation"].as_str() {
            Some(location) => {
                load_known(location.to_owned(), self.access.open()?, self.access.clone()).await
            }
            None => Err(no_metadata(namespace, name)),
        }
    }
}
