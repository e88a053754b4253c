//! AWS Glue: databases are namespaces, and a table's parameters say where its metadata is.

use std::collections::BTreeMap;

use async_trait::async_trait;
use http::Method;
use serde_json::{Value, json};

use super::client::{AwsClient, Refusal, Request};
use super::properties::{glue_files, service_signer};
use crate::Result;
use crate::iceberg::catalog::access::StorageAccess;
use crate::iceberg::catalog::connect::Client;
use crate::iceberg::catalog::error::{no_metadata, no_namespace, not_found};
use crate::iceberg::catalog::metadata::load_known;
use crate::iceberg::catalog::registered::LoadedTable;

/// The parameter of a table that names its format.
const TABLE_TYPE: &str = "table_type";
const METADATA_LOCATION: &str = "metadata_location";

/// Glue by its protocol, AWS JSON 1.1:
/// <https://docs.aws.amazon.com/glue/latest/webapi/API_GetTable.html>.
pub(in crate::iceberg::catalog) struct GlueClient {
    client: AwsClient,
    /// The account whose catalog it is; None for the caller's.
    catalog_id: Option<String>,
    access: StorageAccess,
}

impl GlueClient {
    pub(in crate::iceberg::catalog) fn try_new(
        properties: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let get = |name: &str| properties.get(name).filter(|text| !text.is_empty()).cloned();
        let endpoint = get("glue.endpoint").or(get("uri"));
        let signer = service_signer("glue", None, properties)?;
        let client =
            AwsClient::try_new("AWS Glue", "glue", endpoint.as_deref(), signer, properties)?;
        let access = StorageAccess::new(&glue_files(properties));
        Ok(Self { client, catalog_id: get("glue.id"), access })
    }

    fn request(&self, operation: &str, mut body: Value) -> Request {
        if let Some(id) = &self.catalog_id {
            body["CatalogId"] = json!(id);
        }
        Request {
            method: Method::POST,
            path: "/".to_owned(),
            headers: vec![
                ("content-type", "application/x-amz-json-1.1".to_owned()),
                ("x-amz-target", format!("AWSGlue.{operation}")),
            ],
            body: body.to_string(),
        }
    }

    /// All pages of a listing, which each answer has under `field`.
    async fn pages(
        &self,
        operation: &str,
        body: Value,
        field: &str,
    ) -> Result<Vec<Value>, Refusal> {
        let request = |token: Option<&str>| {
            let mut body = body.clone();
            if let Some(token) = token {
                body["NextToken"] = json!(token);
            }
            self.request(operation, body)
        };
        self.client.pages(field, "NextToken", request).await
    }
}

#[async_trait]
impl Client for GlueClient {
    async fn list_namespaces(&self, parent: &[String]) -> Result<Vec<Vec<String>>> {
        // Databases do not nest.
        if !parent.is_empty() {
            return Ok(Vec::new());
        }
        let databases = self.pages("GetDatabases", json!({}), "DatabaseList").await?;
        Ok(databases
            .iter()
            .filter_map(|one| Some(vec![one["Name"].as_str()?.to_owned()]))
            .collect())
    }

    async fn list_tables(&self, namespace: &[String]) -> Result<Vec<String>> {
        let [database] = namespace else { return Err(no_namespace(namespace)) };
        match self.pages("GetTables", json!({ "DatabaseName": database }), "TableList").await {
            Ok(tables) => Ok(tables
                .iter()
                .filter(|table| {
                    let kind = table["Parameters"][TABLE_TYPE].as_str();
                    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("iceberg"))
                })
                .filter_map(|table| Some(table["Name"].as_str()?.to_owned()))
                .collect()),
            Err(Refusal::NotFound(_)) => Err(no_namespace(namespace)),
            Err(Refusal::Other(error)) => Err(error),
        }
    }

    async fn load_table(&self, namespace: &[String], name: &str) -> Result<LoadedTable> {
        let [database] = namespace else { return Err(no_namespace(namespace)) };
        let request = self.request("GetTable", json!({ "DatabaseName": database, "Name": name }));
        let answer = match self.client.send(request).await {
            Ok(answer) => answer,
            Err(Refusal::NotFound(_)) => return Err(not_found(namespace, name)),
            Err(Refusal::Other(error)) => return Err(error),
        };
        match answer["Table"]["Parameters"][METADATA_LOCATION].as_str() {
            Some(location) => {
                load_known(location.to_owned(), self.access.open()?, self.access.clone()).await
            }
            None => Err(no_metadata(namespace, name)),
        }
    }
}
