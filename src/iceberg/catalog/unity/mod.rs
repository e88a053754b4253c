//! Unity Catalog: names, places of Delta tables, and the credentials that it gives for their files.
//! API: <https://docs.unitycatalog.io/swagger-docs/>.

mod client;
mod credentials;

pub(super) use client::UnityClient;
pub use credentials::UnityCredentials;
