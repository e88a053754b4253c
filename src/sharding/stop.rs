//! Ends a deal that nobody waits for any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// A flag that a long deal looks at now and then.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the deals that look at it.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// `Config` where the deal is to end.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Error::config("dealing was interrupted")),
            false => Ok(()),
        }
    }
}
