//! Errors of the user's code on their way through layers that pass on no more than text.
//!
//! DataFusion's row filter of Parquet files makes text of an error, and so does its coercion of
//! arguments; an error that several readers wait for is shared, and cannot be moved out. Such an
//! error is kept here, and goes through those layers under a ticket, a name in its text, by which
//! the conversion to [`Error`] finds it again.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;

const MARK: &str = "tensorquery-ticket-";

/// Errors that are kept at a time: more than threads that can fail before one of them is heard.
const KEPT: usize = 256;

static NEXT: AtomicU64 = AtomicU64::new(0);
static ERRORS: Mutex<VecDeque<(u64, Arc<Error>)>> = Mutex::new(VecDeque::new());

/// Stores `error` and returns a placeholder for layers that turn errors into text.
pub(crate) fn check_in(error: Error) -> Error {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let ticket = Error::new(error.kind(), format!("{MARK}{number}."));
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    if errors.len() == KEPT {
        errors.pop_front();
    }
    errors.push_back((number, Arc::new(error)));
    ticket
}

/// The error that `error` stands for, or itself. A ticket is good for several readers.
pub(crate) fn redeem(error: Error) -> Error {
    let Some((_, rest)) = error.message().split_once(MARK) else { return error };
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let Ok(number) = digits.parse::<u64>() else { return error };
    let errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    match errors.iter().find(|(known, _)| *known == number) {
        Some((_, kept)) => {
            let found = Error::new(kept.kind(), kept.message()).of_user_code();
            match kept.source() {
                Some(_) => found.with_source(Kept(Arc::clone(kept))),
                None => found,
            }
        }
        None => error,
    }
}

/// The source of a kept error.
#[derive(Debug)]
struct Kept(Arc<Error>);

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.source() {
            Some(source) => write!(f, "{source}"),
            None => Ok(()),
        }
    }
}

impl StdError for Kept {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::error::DataFusionError;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn an_error_survives_a_layer_of_text() {
        let original = Error::query("the function f failed").with_source(fmt::Error);
        let text = format!("filter failed: {:?}", DataFusionError::from(check_in(original)));
        for _ in 0..2 {
            let found = Error::from(DataFusionError::Execution(text.clone()));
            assert_eq!(found.kind(), ErrorKind::Query);
            assert_eq!(found.message(), "the function f failed");
            assert!(found.is_of_user_code());
            let source = found.source().and_then(StdError::source);
            assert!(source.is_some_and(|source| source.is::<fmt::Error>()));
        }
    }

    #[test]
    fn other_errors_stay_what_they_are() {
        let found = redeem(Error::data(format!("{MARK}999999999. is not known")));
        assert!(found.message().contains("is not known"));
        assert!(!found.is_of_user_code());
    }
}
