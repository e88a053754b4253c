//! The possible outcomes of a condition in each container: true, false or NULL for some row.

use arrow::buffer::BooleanBuffer;

/// Outcomes that are possible. More than there are is allowed, fewer would be wrong.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    pub(super) is_true: BooleanBuffer,
    pub(super) is_false: BooleanBuffer,
    pub(super) is_null: BooleanBuffer,
}

impl Truth {
    /// Nothing is known.
    pub(super) fn unknown(containers: usize) -> Self {
        let all = BooleanBuffer::new_set(containers);
        Self { is_true: all.clone(), is_false: all.clone(), is_null: all }
    }

    /// One outcome for all containers.
    pub(super) fn constant(value: Option<bool>, containers: usize) -> Self {
        let mask = |is: bool| match is {
            true => BooleanBuffer::new_set(containers),
            false => BooleanBuffer::new_unset(containers),
        };
        Self {
            is_true: mask(value == Some(true)),
            is_false: mask(value == Some(false)),
            is_null: mask(value.is_none()),
        }
    }

    /// A test that is never NULL.
    pub(super) fn test(is_true: BooleanBuffer, is_false: BooleanBuffer) -> Self {
        let is_null = BooleanBuffer::new_unset(is_true.len());
        Self { is_true, is_false, is_null }
    }

    pub(super) fn not(self) -> Self {
        Self { is_true: self.is_false, is_false: self.is_true, is_null: self.is_null }
    }

    /// The outcomes of two conditions on one row, joined by AND.
    pub(super) fn and(&self, other: &Self) -> Self {
        let no_false = |one: &Self| &one.is_true | &one.is_null;
        Self {
            is_true: &self.is_true & &other.is_true,
            is_false: &self.is_false | &other.is_false,
            is_null: &(&self.is_null & &no_false(other)) | &(&other.is_null & &no_false(self)),
        }
    }

    pub(super) fn or(self, other: Self) -> Self {
        self.not().and(&other.not()).not()
    }
}
