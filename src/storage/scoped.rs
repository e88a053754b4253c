//! One store read by several accounts, each for the paths below a prefix.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result,
};

use super::location::{Location, describe};
use super::open::StoreAccess;
use super::options::redact;
use super::routed::is_refusal;
use super::vended::CredentialCache;
use crate::pool::briefly;

/// The requests of one account.
#[derive(Clone)]
pub(super) struct Account {
    /// The directory that it reads; empty for all that no other one reads.
    pub(super) prefix: Path,
    pub(super) store: Arc<dyn ObjectStore>,
    /// Where its credentials come from, if they can be asked for again.
    pub(super) credential_cache: Option<Arc<CredentialCache>>,
    /// Values that no error may repeat.
    pub(super) secrets: BTreeMap<String, String>,
}

/// Requests that delete at the same time.
const DELETES: usize = 8;

/// Sends each request with the account of the longest prefix of its path, sends it once more with
/// newer credentials where the store refused those in use, and hides secrets in errors.
///
/// A listing is made by the account of the directory that is listed. Of an upload in parts only the
/// beginning is sent once more: a part has its number from the order in which parts are handed
/// over.
///
/// Neither connections nor the threads that serve them survive a fork: a forked process opens the
/// accounts anew.
#[derive(Clone)]
pub(super) struct ScopedStore(Arc<Scoped>);

struct Scoped {
    root: Arc<str>,
    /// The longest prefix first; the last one takes every path.
    accounts: Arc<[Account]>,
    /// The process that opened them.
    process: u32,
    /// The access that opens them; None for a store inside another one, which opens both.
    opener: Option<(StoreAccess, Location)>,
    /// The accounts of a forked process.
    again: Mutex<Option<(u32, Arc<[Account]>)>>,
}

impl ScopedStore {
    /// The accounts that `access` has opened for a location.
    pub(super) fn new(access: &StoreAccess, location: &Location, accounts: Vec<Account>) -> Self {
        let opener = Some((access.clone(), location.clone()));
        Self::with_opener(location.store_root(), accounts, opener)
    }

    /// One account, of a store that is part of another one.
    pub(super) fn inside(root: &str, account: Account) -> Self {
        Self::with_opener(root, vec![account], None)
    }

    fn with_opener(
        root: &str,
        accounts: Vec<Account>,
        opener: Option<(StoreAccess, Location)>,
    ) -> Self {
        let (root, accounts, process) = (root.into(), accounts.into(), std::process::id());
        Self(Arc::new(Scoped { root, accounts, process, opener, again: Mutex::default() }))
    }
}

impl Scoped {
    async fn accounts(&self) -> Result<Arc<[Account]>> {
        let process = std::process::id();
        let (true, Some((access, location))) = (process != self.process, &self.opener) else {
            return Ok(Arc::clone(&self.accounts));
        };
        if let Some((of, accounts)) = briefly(&self.again, |again| again.clone()).flatten()
            && of == process
        {
            return Ok(accounts);
        }
        let opened = access.accounts(location).await.map_err(failed)?;
        let opened: Arc<[Account]> = opened.into();
        briefly(&self.again, |again| *again = Some((process, Arc::clone(&opened))));
        Ok(opened)
    }
}

fn account_of<'a>(accounts: &'a [Account], location: &Path) -> Result<&'a Account> {
    accounts
        .iter()
        .find(|account| {
            account.prefix.is_root() || location.prefix_match(&account.prefix).is_some()
        })
        .ok_or_else(|| StoreError::Generic {
            store: "ScopedStore",
            source: format!("no account reads {location}").into(),
        })
}

impl Account {
    /// How many answers its credentials are the last one of; 0 where nobody is asked.
    fn issue(&self) -> u64 {
        self.credential_cache
            .as_ref()
            .map_or(0, |credential_cache| credential_cache.current().number)
    }

    /// Returns true if the request should be repeated after this failure, because there are newer
    /// credentials now.
    async fn can_repeat(&self, issue: u64, error: &StoreError) -> Result<bool> {
        match &self.credential_cache {
            Some(credential_cache) if is_refusal(error) => {
                credential_cache.after_refusal(issue).await.map_err(failed)
            }
            _ => Ok(false),
        }
    }

    /// The answer to a request, which is sent once more where it was refused and there are newer
    /// credentials now.
    async fn answer<T, F>(&self, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let issue = self.issue();
        match request().await {
            Err(error) if self.can_repeat(issue, &error).await? => request().await,
            answer => answer,
        }
    }

    /// The error with the file's URL, and without secrets.
    fn hide(&self, error: StoreError, root: &str, location: &Path) -> StoreError {
        let mut secrets = self.secrets.clone();
        if let Some(credential_cache) = &self.credential_cache {
            let issue = credential_cache.current();
            secrets.extend(issue.config.properties.iter().map(|(n, v)| (n.clone(), v.clone())));
        }
        let path = describe(root, location);
        match error {
            StoreError::NotFound { source, .. } => {
                StoreError::NotFound { path, source: safe(source, &secrets) }
            }
            StoreError::PermissionDenied { source, .. } => {
                StoreError::PermissionDenied { path, source: safe(source, &secrets) }
            }
            StoreError::Unauthenticated { source, .. } => {
                StoreError::Unauthenticated { path, source: safe(source, &secrets) }
            }
            StoreError::Generic { store, source } => {
                StoreError::Generic { store, source: safe(source, &secrets) }
            }
            other => other,
        }
    }
}

fn failed(error: crate::Error) -> StoreError {
    StoreError::Generic { store: "ScopedStore", source: Box::new(error) }
}

/// XML elements in which S3 repeats parts of a refused request: the key, the token, and the signed
/// text.
const REPEATED: &[&str] = &[
    "AWSAccessKeyId",
    "Token-0",
    "StringToSign",
    "StringToSignBytes",
    "SignatureProvided",
    "CanonicalRequest",
    "CanonicalRequestBytes",
];

/// A store's answer without the secrets that it may repeat.
fn safe(
    source: Box<dyn std::error::Error + Send + Sync>,
    secrets: &BTreeMap<String, String>,
) -> Box<dyn std::error::Error + Send + Sync> {
    // An error of this crate holds none, and its kind and cause are kept.
    if source.is::<crate::Error>() {
        return source;
    }
    let text = source.to_string();
    let hidden = without_elements(redact(&text, secrets));
    match hidden == text {
        true => source,
        false => hidden.into(),
    }
}

fn without_elements(mut text: String) -> String {
    for name in REPEATED {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        if let Some(start) = text.find(&open).map(|at| at + open.len())
            && let Some(length) = text[start..].find(&close)
        {
            text.replace_range(start..start + length, "***");
        }
    }
    text
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for ScopedStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let accounts = self.0.accounts().await?;
        let account = account_of(&accounts, location)?;
        let got = account.answer(|| account.store.get_opts(location, options.clone())).await;
        got.map_err(|error| account.hide(error, &self.0.root, location))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let accounts = self.0.accounts().await?;
        let account = account_of(&accounts, location)?;
        let got = account.answer(|| account.store.get_ranges(location, ranges)).await;
        got.map_err(|error| account.hide(error, &self.0.root, location))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned().unwrap_or_default();
        let scoped = Arc::clone(&self.0);
        let listing = async move {
            let account = account_of(&scoped.accounts().await?, &prefix)?.clone();
            let issue = account.issue();
            // An empty listing must not be asked again after its end.
            let mut listed = account.store.list(Some(&prefix)).fuse();
            let mut first = listed.next().await;
            if let Some(Err(error)) = &first {
                match account.can_repeat(issue, error).await {
                    Ok(true) => {
                        listed = account.store.list(Some(&prefix)).fuse();
                        first = listed.next().await;
                    }
                    Ok(false) => {}
                    Err(error) => first = Some(Err(error)),
                }
            }
            let all = stream::iter(first).chain(listed);
            let hide = move |error| account.hide(error, &scoped.root, &prefix);
            Ok::<_, StoreError>(all.map_err(hide))
        };
        stream::once(listing).try_flatten().boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let offset = offset.clone();
        let is_after = move |found: &Result<ObjectMeta>| {
            std::future::ready(found.as_ref().map_or(true, |meta| meta.location > offset))
        };
        self.list(prefix).filter(is_after).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let directory = prefix.cloned().unwrap_or_default();
        let accounts = self.0.accounts().await?;
        let account = account_of(&accounts, &directory)?;
        let listed = account.answer(|| account.store.list_with_delimiter(prefix)).await;
        listed.map_err(|error| account.hide(error, &self.0.root, &directory))
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let accounts = self.0.accounts().await?;
        let account = account_of(&accounts, location)?;
        let put = || account.store.put_opts(location, payload.clone(), options.clone());
        let put = account.answer(put).await;
        put.map_err(|error| account.hide(error, &self.0.root, location))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let accounts = self.0.accounts().await?;
        let account = account_of(&accounts, location)?;
        let begin = || account.store.put_multipart_opts(location, options.clone());
        let upload = account.answer(begin).await;
        upload.map_err(|error| account.hide(error, &self.0.root, location))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let scoped = Arc::clone(&self.0);
        let delete = move |location: Result<Path>| {
            let scoped = Arc::clone(&scoped);
            async move {
                let location = location?;
                let accounts = scoped.accounts().await?;
                let account = account_of(&accounts, &location)?;
                let deleted = account.answer(|| account.store.delete(&location)).await;
                deleted.map_err(|error| account.hide(error, &scoped.root, &location))?;
                Ok(location)
            }
        };
        locations.map(delete).buffered(DELETES).boxed()
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let accounts = self.0.accounts().await?;
        account_of(&accounts, from)?.store.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let accounts = self.0.accounts().await?;
        account_of(&accounts, from)?.store.rename_opts(from, to, options).await
    }
}

impl fmt::Display for ScopedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.accounts.last() {
            Some(account) => write!(f, "{}", account.store),
            None => f.write_str("ScopedStore"),
        }
    }
}

impl fmt::Debug for ScopedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_s3_repeats_is_hidden() {
        let text = "<Error><Code>InvalidToken</Code><Token-0>abc</Token-0>\
                    <AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        let expected = "<Error><Code>InvalidToken</Code><Token-0>***</Token-0>\
                        <AWSAccessKeyId>***</AWSAccessKeyId></Error>";
        assert_eq!(without_elements(text.to_owned()), expected);
    }
}
