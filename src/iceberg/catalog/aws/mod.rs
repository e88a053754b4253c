//! AWS Glue and Amazon S3 Tables, asked by their JSON protocols with signed requests.

mod client;
mod glue;
mod properties;
mod s3tables;
mod signer;

pub(super) use glue::GlueClient;
pub(super) use properties::table_bucket;
pub(super) use s3tables::S3TablesClient;
pub(super) use signer::{Signer, keys_of};
