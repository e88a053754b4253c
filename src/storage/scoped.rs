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

use super::hidden::hide;
use super::location::{Location, describe};
use super::open::StoreAccess;
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

    /// The answer to a request, which is sent once more where it was refused and there are newer
    /// credentials now.
    async fn answer<T, F>(&self, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match &self.credential_cache {
            Some(credential_cache) => credential_cache.answer(self.issue(), request).await,
            None => request().await,
        }
    }

    /// The error with the file's URL, and without secrets.
    fn hide(&self, error: StoreError, root: &str, location: &Path) -> StoreError {
        let mut secrets = self.secrets.clone();
        if let Some(credential_cache) = &self.credential_cache {
            let issue = credential_cache.current();
            secrets.extend(issue.config.properties.iter().map(|(n, v)| (n.clone(), v.clone())));
        }
        hide(error, describe(root, location), &secrets)
    }
}

fn failed(error: crate::Error) -> StoreError {
    StoreError::Generic { store: "ScopedStore", source: Box::new(error) }
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
                let repeats = match &account.credential_cache {
                    Some(credential_cache) => credential_cache.can_repeat(issue, error).await,
                    None => Ok(false),
                };
                match repeats {
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
