//! The form of a JSON document, independent of the order of its keys.

use serde_json::Value;

use super::Form;
use crate::Result;

/// A document.
///
/// # Errors
/// None of its own: lists take closures that may fail.
pub fn json(form: &mut Form, tag: &str, document: &Value) -> Result<()> {
    match document {
        Value::Null => {
            form.absent(tag);
        }
        Value::Bool(flag) => {
            form.flag(tag, *flag);
        }
        Value::String(text) => {
            form.text(tag, text);
        }
        Value::Number(number) => {
            form.nested(tag, "number", |form| {
                form.text("digits", &number.to_string());
                Ok(())
            })?;
        }
        Value::Array(items) => {
            form.list(tag, items, |form, item| json(form, "item", item))?;
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            form.nested(tag, "object", |form| {
                form.list("fields", fields, |form, (key, value)| {
                    form.text("key", key);
                    json(form, "value", value)
                })?;
                Ok(())
            })?;
        }
    }
    Ok(())
}
