//! Iceberg's REST catalog: reading namespaces, tables and the credentials that it gives.

mod auth;
mod client;
mod http;
mod table;

pub(super) use client::RestClient;
pub(super) use http::{CONNECT_TIMEOUT, TIMEOUT, Tries, encode, plain, unreachable};
pub(super) use table::{RestRefresh, RestTable};
