//! The HTTP layer below all remote stores: every request of `object_store`, whichever store sends
//! it, goes through here and takes part in the process's
//! [`RequestLimiter`](crate::request_limiter::RequestLimiter). Its clients, and the rule for
//! redirects, are those of catalogs too.

mod body;
mod client;
mod listing;
mod options;
mod redirects;
mod service;
mod whole;

pub(crate) use client::{client_builder, send};
pub(super) use options::{NETWORK_OPTIONS, NetworkOptions};
pub(super) use service::Connector;
pub(crate) use service::retry_after;
pub(crate) use whole::{error_text, whole};
