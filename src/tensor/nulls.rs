//! The null policy of one column: chosen at construction, applied while writing.

use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

use super::dtype::{DType, Scalar};
use super::options::{NullPolicy, Nulls, Value};
use crate::{Error, Result, suggestion};

/// The policy of a column, and whether the user named this very column.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) rule: NullPolicy,
    /// True where the options name the column itself: then a policy that cannot apply to its type
    /// is an error at once. A policy for all columns applies where it can.
    pub(super) explicit: bool,
}

impl Policy {
    /// The policy of `name` (`column` or `column.field`): its own entry, else its parent's.
    pub(super) fn of(nulls: &Nulls, name: &str, parent: Option<&Self>) -> Self {
        match (nulls, parent) {
            (Nulls::All(rule), _) => Self { rule: rule.clone(), explicit: false },
            (Nulls::Columns(columns), parent) => match (columns.get(name), parent) {
                (Some(rule), _) => Self { rule: rule.clone(), explicit: true },
                (None, Some(parent)) => Self { rule: parent.rule.clone(), explicit: false },
                (None, None) => Self { rule: NullPolicy::Error, explicit: false },
            },
        }
    }

    /// The element that is written over nulls, or None where a null is an error.
    pub(super) fn element(
        &self,
        name: &str,
        data_type: &DataType,
        dtype: DType,
        nullable: bool,
    ) -> Result<Option<Scalar>> {
        let patch = match &self.rule {
            NullPolicy::Error => return Ok(None),
            // A column declared without nulls has no mask to tell a zero from a null.
            NullPolicy::Mask => return Ok(nullable.then(|| dtype.zero())),
            NullPolicy::Nan => dtype.nan(),
            NullPolicy::Fill(value) => dtype.encode(value),
        };
        match patch {
            None if self.explicit => Err(self.misfit(name, data_type, dtype.name())),
            patch => Ok(patch),
        }
    }

    /// The string or byte string that is put in place of nulls, or None where a null is an error.
    pub(super) fn text(
        &self,
        name: &str,
        data_type: &DataType,
        binary: bool,
        nullable: bool,
    ) -> Result<Option<Value>> {
        let empty = || if binary { Value::Bytes(Vec::new()) } else { Value::Text(String::new()) };
        let patch = match &self.rule {
            NullPolicy::Error => return Ok(None),
            NullPolicy::Mask => return Ok(nullable.then(empty)),
            NullPolicy::Fill(value @ Value::Text(_)) if !binary => Some(value.clone()),
            NullPolicy::Fill(value @ Value::Bytes(_)) if binary => Some(value.clone()),
            _ => None,
        };
        match patch {
            None if self.explicit => {
                Err(self.misfit(name, data_type, if binary { "bytes" } else { "str" }))
            }
            patch => Ok(patch),
        }
    }

    /// The error for a policy that the user chose for `name` and that its type cannot follow.
    pub(super) fn misfit(&self, name: &str, data_type: &DataType, form: &str) -> Error {
        let (chosen, near) = match &self.rule {
            NullPolicy::Fill(Value::Text(word)) => {
                (format!("{word:?}"), suggestion(word, ["error", "nan", "mask"]))
            }
            NullPolicy::Fill(value) => (value.to_string(), String::new()),
            NullPolicy::Nan => ("\"nan\"".to_owned(), String::new()),
            NullPolicy::Mask => ("\"mask\"".to_owned(), String::new()),
            NullPolicy::Error => ("\"error\"".to_owned(), String::new()),
        };
        Error::config(format!(
            "nulls: {chosen} does not fit column {name:?} ({data_type}, output {form}); allowed are \
             \"error\", \"mask\", \"nan\" for floats, or a fill value of the output's type{near}"
        ))
    }

    /// The error for `count` nulls that the policy does not cover.
    pub(super) fn refuse(
        &self,
        name: &str,
        data_type: &DataType,
        count: usize,
        what: &str,
    ) -> Error {
        let nulls = if count == 1 { "null" } else { "nulls" };
        let why = match &self.rule {
            NullPolicy::Error => format!(
                "choose nulls={{{name:?}: \"mask\"}} (or \"nan\" for floats, or a fill value), or \
                 COALESCE in SQL"
            ),
            NullPolicy::Nan => {
                "nulls=\"nan\" covers float columns only; choose \"mask\" or a fill \
                                value for this one, or COALESCE in SQL"
                    .to_owned()
            }
            NullPolicy::Fill(value) => format!(
                "the fill value {value} does not fit its type; choose another for this column, or \
                 COALESCE in SQL"
            ),
            NullPolicy::Mask => {
                "its schema declares it without nulls, so that it has no mask".to_owned()
            }
        };
        Error::data(format!("column {name:?} ({data_type}) has {count} {nulls}{what}: {why}"))
    }

    /// The error for `count` nulls inside the lists of a column whose mask marks whole rows.
    pub(super) fn refuse_elements(&self, name: &str, data_type: &DataType, count: usize) -> Error {
        if self.rule == NullPolicy::Mask {
            return Error::data(format!(
                "column {name:?} ({data_type}) has {count} null elements inside its lists, and a mask \
                 marks whole rows; choose nulls={{{name:?}: \"nan\"}} or a fill value"
            ));
        }
        self.refuse(name, data_type, count, " inside its lists")
    }
}

/// Writes `patch` over the elements that are null.
pub(super) fn patch_nulls(target: &mut [u8], nulls: &NullBuffer, patch: Scalar) {
    let element = patch.as_bytes();
    for index in (!nulls.inner()).set_indices() {
        let first = index * element.len();
        target[first..first + element.len()].copy_from_slice(element);
    }
}

/// Writes one byte per row: 1 where the value is valid.
pub(super) fn write_mask(target: &mut [u8], nulls: Option<&NullBuffer>) {
    target.fill(1);
    if let Some(nulls) = nulls {
        patch_nulls(target, nulls, DType::Bool.zero());
    }
}
