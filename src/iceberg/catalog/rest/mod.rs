//! Iceberg's REST catalog: reading namespaces, tables and the credentials that it gives.

mod auth;
mod client;
mod http;
mod table;
mod trust;

pub(super) use client::{RestClient, all_pages, parse};
pub(super) use http::{
    CONNECT_TIMEOUT, Http, Refusal, TIMEOUT, Tries, encode, is_passing, plain, unreachable,
};
pub(super) use table::{RestRefresh, RestTable};
pub(super) use trust::TRUSTED_ORIGINS;
