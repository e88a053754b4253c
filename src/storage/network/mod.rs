//! The HTTP layer below all remote stores: every request of `object_store`, whichever store sends
//! it, goes through here and takes part in the process's
//! [`RequestLimiter`](crate::request_limiter::RequestLimiter).

mod body;
mod listing;
mod options;
mod service;

pub(super) use options::{NETWORK_OPTIONS, NetworkOptions};
pub(super) use service::Connector;
pub(crate) use service::retry_after;
