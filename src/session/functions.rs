//! Functions of the user's: registered by name, and bound to queries and views as tables are.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::Volatility;

use super::ipc;
use super::query::Query;
use super::registered::Registered;
use super::registry::{FUNCTION_SCHEMA, Session};
use crate::exec::ForeignUdf;
use crate::storage::ForeignFunction;
use crate::{Error, Result, list_names, suggestion};

/// A registered function as `Session.functions()` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionInfo {
    /// The name in SQL.
    pub name: String,
    /// The types of its arguments.
    pub input_types: Vec<String>,
    /// The type of its result.
    pub return_type: String,
    /// `immutable`, `stable` or `volatile`.
    pub volatility: &'static str,
}

impl FunctionInfo {
    fn of(function: &dyn ForeignFunction) -> Self {
        Self {
            name: function.name().to_owned(),
            input_types: function.input_types().iter().map(ToString::to_string).collect(),
            return_type: function.return_type().to_string(),
            volatility: match function.volatility() {
                Volatility::Immutable => "immutable",
                Volatility::Stable => "stable",
                Volatility::Volatile => "volatile",
            },
        }
    }
}

impl Session {
    /// Registers a function for SQL; an earlier one of the user's with that name is replaced, in
    /// queries to come.
    ///
    /// # Errors
    /// `Config` for the name of a built-in function, an empty one, or a function without arguments.
    pub fn register_function(&self, function: Arc<dyn ForeignFunction>) -> Result<()> {
        let name = function.name().to_owned();
        if name.trim().is_empty() {
            return Err(Error::config("a function name must not be empty"));
        }
        if function.input_types().is_empty() {
            return Err(Error::config(format!(
                "the function {name} has no input_types, and so could not know how many values to return; give it a \
                 column as argument"
            )));
        }
        let state = self.context().state();
        let is_built_in = [&name, &name.to_lowercase()].into_iter().any(|name| {
            let scalar = state.scalar_functions().get(name);
            scalar.is_some_and(|udf| ForeignUdf::of(udf).is_none())
                || state.aggregate_functions().contains_key(name)
                || state.window_functions().contains_key(name)
        });
        if is_built_in {
            return Err(Error::config(format!(
                "{name} is a built-in function, which cannot be replaced; register yours under another name, for \
                 example my_{}",
                name.to_lowercase()
            )));
        }
        self.bind((FUNCTION_SCHEMA.to_owned(), name), Registered::Function(function))
    }

    /// Removes a function; queries and views made before keep it.
    ///
    /// # Errors
    /// `Config` with the nearest name.
    pub fn deregister_function(&self, name: &str) -> Result<()> {
        let key = (FUNCTION_SCHEMA.to_owned(), name.to_owned());
        if !self.unbind(&key) {
            let functions = self.functions();
            let names: Vec<&str> = functions.iter().map(|known| known.name.as_str()).collect();
            let known = match names.is_empty() {
                true => "no function is registered".to_owned(),
                false => format!("registered are {}", list_names(&names)),
            };
            return Err(Error::config(format!(
                "unknown function {name:?}{}; {known}",
                suggestion(name, names.iter().copied())
            )));
        }
        self.context().deregister_udf(name);
        Ok(())
    }

    /// The registered functions, by name.
    pub fn functions(&self) -> Vec<FunctionInfo> {
        let names = self.names();
        let functions = names.values().filter_map(|registered| match registered {
            Registered::Function(function) => Some(FunctionInfo::of(function.as_ref())),
            _ => None,
        });
        functions.collect()
    }

    /// Puts a function into the engine.
    pub(super) fn bind_function(&self, function: &Arc<dyn ForeignFunction>) -> Result<()> {
        let udf = Arc::new(ForeignUdf::udf(Arc::clone(function)));
        self.context().state_ref().write().register_udf(udf)?;
        Ok(())
    }
}

/// A schema as Arrow IPC.
///
/// # Errors
/// Where a type has no form there.
pub fn encode_schema(schema: &Schema) -> Result<Vec<u8>> {
    ipc::encode(schema, &[])
}

/// The inverse of [`encode_schema`].
///
/// # Errors
/// Where the bytes are no Arrow IPC.
pub fn decode_schema(bytes: &[u8]) -> Result<SchemaRef> {
    Ok(ipc::decode(bytes)?.0)
}

impl Query {
    /// Name and digest of every function of the user's that the query calls.
    pub fn functions(&self) -> Vec<(String, String)> {
        let functions =
            self.tables().iter().filter_map(|((_, name), registered)| match registered {
                Registered::Function(function) => {
                    Some((name.clone(), function.digest().to_owned()))
                }
                _ => None,
            });
        functions.collect()
    }
}
