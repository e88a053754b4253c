//! Writes under a condition, by which processes agree on who is first.
//!
//! Not every store knows conditions: some S3 servers answer 400 or 501. There an object is looked
//! at before it is written, and two processes may both be first. That costs work and does no harm:
//! the manifest that is written last counts.

use std::error::Error as StdError;

use object_store::client::HttpError;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt, PutMode, PutOptions, PutResult};

use super::place::StagePlace;
use crate::Result;

/// Writes an object under the condition of a mode; None where that is not met.
pub(super) async fn put_if(
    place: &StagePlace,
    path: &Path,
    bytes: Vec<u8>,
    mode: PutMode,
) -> Result<Option<PutResult>> {
    let store = place.store();
    if place.knows_conditions() {
        let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
        match store.put_opts(path, bytes.clone().into(), options).await {
            Ok(put) => return Ok(Some(put)),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                return Ok(None);
            }
            // Without an object to update; to create one, what is missing is the bucket.
            Err(StoreError::NotFound { .. }) if matches!(mode, PutMode::Update(_)) => {
                return Ok(None);
            }
            Err(error) if may_be_refusal(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let found = match store.head(path).await {
        Ok(found) => Some(found.e_tag),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let is_met = match mode {
        PutMode::Overwrite => true,
        PutMode::Create => found.is_none(),
        PutMode::Update(version) => found == Some(version.e_tag),
    };
    if !is_met {
        return Ok(None);
    }
    let put = store.put(path, bytes.into()).await?;
    // It was the condition that was refused. Each refusal may take as long as all tries of a
    // request.
    place.forgo_conditions();
    Ok(Some(put))
}

/// Returns true if a store may have refused a condition as such. Few stores say so: 400 and 501
/// come as errors without a name, like all answers that the client does not know. A failed
/// connection is no answer.
fn may_be_refusal(error: &StoreError) -> bool {
    match error {
        StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => true,
        StoreError::Generic { source, .. } => {
            let mut next: Option<&(dyn StdError + 'static)> = Some(source.as_ref());
            while let Some(error) = next {
                if error.is::<HttpError>() {
                    return false;
                }
                next = error.source();
            }
            true
        }
        _ => false,
    }
}
