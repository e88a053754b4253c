//! One error for the whole crate: a kind, a message that says the value, the bound and the fix,
//! context as key and value, and the source.

pub(crate) mod pass_through;

use std::error::Error as StdError;
use std::fmt;
use std::io;

use arrow::error::ArrowError;
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;

use self::pass_through::redeem;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, which decides its Python exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An option is unknown, malformed or contradicts another one.
    Config,
    /// A table, path or glob names nothing.
    TableNotFound,
    /// The SQL or filter is malformed, not read-only, or names unknown columns.
    Query,
    /// The query is valid, but not row-local above one scan.
    NotShardable,
    /// The data contradict the schema, the null policy or the pinned files.
    Data,
    /// The query takes more memory than it may.
    Memory,
    /// A column has no tensor form.
    UnsupportedType,
    /// Reading from a file system or object store failed.
    Storage,
    /// A checkpoint belongs to another query, seed or file list.
    CheckpointMismatch,
}

/// The error of every fallible function of this crate.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    context: Vec<(&'static str, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    of_user_code: bool,
    of_other_file: bool,
}

impl Error {
    /// An error of `kind` with a message that names the value, the allowed values and the fix.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            context: Vec::new(),
            source: None,
            of_user_code: false,
            of_other_file: false,
        }
    }

    /// Shorthand for [`ErrorKind::Config`].
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// Shorthand for [`ErrorKind::Query`].
    pub fn query(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Query, message)
    }

    /// Shorthand for [`ErrorKind::Data`].
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }

    /// Shorthand for [`ErrorKind::Storage`].
    pub fn storage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Storage, message)
    }

    /// Shorthand for [`ErrorKind::CheckpointMismatch`].
    pub fn checkpoint(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::CheckpointMismatch, message)
    }

    /// Adds where it happened, for example `("file", path)`.
    #[must_use]
    pub fn with_context(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.context.push((key, value.to_string()));
        self
    }

    /// Adds the error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says that a function of the user's is to blame, and no file.
    #[must_use]
    pub fn of_user_code(mut self) -> Self {
        self.of_user_code = true;
        self
    }

    /// Returns true if a function of the user's is to blame.
    pub fn is_of_user_code(&self) -> bool {
        self.of_user_code
    }

    /// Says that the store had another file than the pinned one, or none.
    #[must_use]
    pub fn of_other_file(mut self) -> Self {
        self.of_other_file = true;
        self
    }

    /// Returns true if the store had another file than the pinned one, or none.
    pub fn is_of_other_file(&self) -> bool {
        self.of_other_file
    }

    /// Returns true if the content of a file, as it was pinned, may be to blame.
    pub fn may_be_of_content(&self) -> bool {
        self.kind == ErrorKind::Data && !self.of_user_code && !self.of_other_file
    }

    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message without context and source.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.context.is_empty() {
            let pairs: Vec<String> =
                self.context.iter().map(|(key, value)| format!("{key}: {value}")).collect();
            write!(f, " ({})", pairs.join(", "))?;
        }
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// The candidate nearest to `name` by edit distance, where one is near enough to be a typing error.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            (strsim::damerau_levenshtein(&wanted, &candidate.to_lowercase()), candidate)
        })
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().max(name.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `; did you mean "x"?`, or nothing where no candidate is near.
pub fn suggestion<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, candidates).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default()
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        redeem(Self::of_engine(error))
    }
}

impl Error {
    fn of_engine(error: DataFusionError) -> Self {
        match error {
            DataFusionError::Context(_, inner) => Self::from(*inner),
            DataFusionError::Diagnostic(_, inner) => Self::from(*inner),
            DataFusionError::Shared(inner) => from_shared(&inner),
            DataFusionError::External(inner) => match inner.downcast::<Self>() {
                Ok(own) => *own,
                Err(other) => match other.downcast::<DataFusionError>() {
                    Ok(nested) => Self::from(*nested),
                    Err(other) => Self::data(other.to_string()),
                },
            },
            DataFusionError::ObjectStore(inner) => Self::from(*inner),
            DataFusionError::ArrowError(inner, _) => match *inner {
                ArrowError::ExternalError(source) => match source.downcast::<Self>() {
                    Ok(own) => *own,
                    Err(other) => match other.downcast::<DataFusionError>() {
                        Ok(nested) => Self::from(*nested),
                        Err(other) => Self::data(other.to_string()),
                    },
                },
                other => from_arrow_error(&other),
            },
            DataFusionError::ParquetError(inner) => match *inner {
                parquet::errors::ParquetError::External(source) => {
                    match source.downcast::<Self>() {
                        Ok(own) => *own,
                        Err(other) => match other.downcast::<object_store::Error>() {
                            Ok(store) => Self::from(*store),
                            Err(other) => Self::data(other.to_string()),
                        },
                    }
                }
                other => undecodable(&other.to_string()),
            },
            DataFusionError::IoError(inner) => from_io_error(&inner),
            DataFusionError::SchemaError(inner, _) => from_schema_error(&inner),
            DataFusionError::Execution(message) => Self::data(message),
            DataFusionError::Plan(message) => from_plan_error(&message),
            DataFusionError::Collection(errors) => match errors.into_iter().next() {
                Some(first) => Self::from(first),
                None => Self::query("the query cannot be planned"),
            },
            DataFusionError::ResourcesExhausted(message) => out_of_memory(&message),
            DataFusionError::NotImplemented(message) if is_left_subquery(&message) => Self::query(
                "a subquery of this form is not supported: conditions on the query around it must be equalities in its own \
                     WHERE, in place of a value below an aggregate, and not below LIMIT or UNION, nor in LATERAL; join a \
                     subquery with GROUP BY instead",
            ),
            DataFusionError::Internal(message) => Self::query(format!(
                "the engine cannot answer this SQL ({}); write it in another way (x > ANY (…) as EXISTS, for example), and please \
                 report it with the SQL",
                message.lines().next().unwrap_or_default()
            )),
            other => Self::query(other.strip_backtrace()),
        }
    }
}

/// Returns true if the planner met a subquery, or a column of the query around it, that no rule has
/// made a join of.
fn is_left_subquery(message: &str) -> bool {
    const LEFT: [&str; 4] = ["ScalarSubquery", "InSubquery", "Exists", "OuterReferenceColumn"];
    let expr = message.strip_prefix("Physical plan does not support logical expression ");
    expr.is_some_and(|expr| LEFT.iter().any(|kind| expr.starts_with(kind)))
}

fn out_of_memory(message: &str) -> Error {
    Error::new(
        ErrorKind::Memory,
        format!("{message}; raise memory_limit, or lower split_bytes or the shuffle buffer"),
    )
}

/// A shared error cannot be moved out of, so its root is told again.
fn from_shared(error: &DataFusionError) -> Error {
    match error.find_root() {
        DataFusionError::External(inner) => match inner.downcast_ref::<Error>() {
            Some(own) => Error {
                kind: own.kind,
                message: own.to_string(),
                context: Vec::new(),
                source: None,
                of_user_code: own.of_user_code,
                of_other_file: own.of_other_file,
            },
            None => Error::data(inner.to_string()),
        },
        DataFusionError::SchemaError(inner, _) => from_schema_error(inner),
        DataFusionError::Plan(message) => from_plan_error(message),
        DataFusionError::ArrowError(inner, _) => from_arrow_error(inner),
        DataFusionError::IoError(inner) => from_io_error(inner),
        DataFusionError::ResourcesExhausted(message) => out_of_memory(message),
        other => Error::data(other.strip_backtrace()),
    }
}

fn from_schema_error(error: &SchemaError) -> Error {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => field_not_found(field, valid_fields),
        SchemaError::DuplicateQualifiedField { name, .. }
        | SchemaError::DuplicateUnqualifiedField { name } => duplicate_column(name),
        // Names that the engine gives to what it makes of subqueries.
        SchemaError::AmbiguousReference { field }
            if field.name == "__always_true" || field.name.ends_with(')') =>
        {
            Error::query(format!(
                "{:?} of two subqueries is ambiguous: of correlated subqueries with count(…) the engine takes one in a SELECT; \
                 write the other into a SELECT around this one, or join a subquery with GROUP BY",
                field.name
            ))
        }
        SchemaError::AmbiguousReference { field } => Error::query(format!(
            "the column {:?} is ambiguous: two tables have it, or two outputs are named so; write the \
             table before it, as in t.{}, or rename one with AS",
            field.name, field.name,
        )),
    }
}

fn field_not_found(field: &Column, valid: &[Column]) -> Error {
    let mut names: Vec<&str> = Vec::new();
    for column in valid {
        if !names.contains(&column.name.as_str()) {
            names.push(&column.name);
        }
    }
    // The name is right, so it is the table in front of it that is not.
    if let Some(relation) = &field.relation
        && names.contains(&field.name.as_str())
    {
        let mut tables: Vec<&str> = Vec::new();
        for table in valid.iter().filter_map(|column| column.relation.as_ref()) {
            if !tables.contains(&table.table()) {
                tables.push(table.table());
            }
        }
        let written = format!("{relation}.{}", field.name);
        return Error::query(format!(
            "unknown table or alias {:?} in {written:?}{}; in reach are {}",
            relation.to_string(),
            suggestion(relation.table(), tables.iter().copied()),
            list_names(&tables),
        ));
    }
    Error::query(format!(
        "unknown column {:?}{}; the columns are {}",
        field.name,
        suggestion(&field.name, names.iter().copied()),
        list_names(&names),
    ))
}

/// Two output columns of one name would become one key of a batch.
pub(crate) fn duplicate_column(name: &str) -> Error {
    Error::query(format!(
        "two output columns are named {name:?}; rename one with AS, or list the columns you need \
         instead of *"
    ))
}

fn from_plan_error(message: &str) -> Error {
    if message.starts_with("Projections require unique expression names") {
        let name = message.split('"').nth(1).unwrap_or_default();
        // A cast has the name of what it casts.
        let cast = name.strip_prefix("CAST(").and_then(|inner| inner.rsplit_once(" AS "));
        let name = cast.map_or(name, |(inner, _)| inner);
        let simple = !name.contains(['(', ' ']);
        return duplicate_column(name.rsplit('.').next().filter(|_| simple).unwrap_or(name));
    }
    Error::query(message.replace(".\nDid you mean", "; did you mean").replace('\n', " "))
}

fn from_arrow_error(error: &ArrowError) -> Error {
    match error {
        ArrowError::ParquetError(message) => undecodable(message),
        ArrowError::CsvError(message) if message.contains("number of fields") => {
            Error::data(format!(
                "the CSV is malformed: {message}; every line needs a field for each column, and every \
                 column a name of its own"
            ))
        }
        ArrowError::CsvError(message) => malformed("CSV", message),
        // Text that is not of the column's type: a later row differs from those looked at.
        ArrowError::ParseError(message) if message.starts_with("Error while parsing value") => {
            misfit(&plain_text(&from_first_line(message)))
        }
        ArrowError::IoError(_, error) => from_io_error(error),
        ArrowError::JsonError(message) if message.contains("failed to parse") => {
            misfit(&plain_text(message))
        }
        // Any single value is text; what is none is a list or an object.
        ArrowError::JsonError(message) => malformed(
            "JSON",
            &message.replace("expected string got", "expected a single value got"),
        ),
        ArrowError::CastError(message) => {
            Error::data(format!("{}; TRY_CAST gives NULL instead", plain_text(message)))
        }
        ArrowError::DictionaryKeyOverflowError => Error::data(
            "rows of one batch have more values than the keys of their dictionary can count; cast the column to the type \
             of its values in SQL, for example CAST(c AS VARCHAR), or choose a smaller batch_size",
        ),
        ArrowError::OffsetOverflowError(_) => Error::data(
            "the texts of the rows that an operator puts together are more than 2 GiB, which their type does not hold; declare \
             the column as large_string or large_binary (schema=)",
        ),
        other => Error::data(plain_text(&other.to_string())),
    }
}

/// A value of text that is not of its column's type.
pub(crate) fn misfit(message: &str) -> Error {
    Error::data(format!(
        "{message}; declare the column's type (schema= of session.register_csv, register_json), or infer it from more \
         rows (infer_rows=)"
    ))
}

/// Text that its parser refuses, with a way out where the parser's words show one.
fn malformed(kind: &str, message: &str) -> Error {
    let remedy = match message {
        _ if message.contains("UTF-8") => "; convert the file to UTF-8",
        _ if message.contains("EOF while parsing") => {
            "; write one object per line, or all as an array of objects"
        }
        _ => "",
    };
    Error::data(format!("the {kind} is malformed: {message}{remedy}"))
}

/// The decoder of CSV counts lines from 0, and from where it began: in a part of a file that is not
/// its first line.
fn from_first_line(message: &str) -> String {
    let counted = message.split_once(" at line ").and_then(|(before, rest)| {
        let digits = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
        let line = rest[..digits].parse::<u64>().ok()?;
        Some(format!("{before} in line {} of what was read{}", line + 1, &rest[digits..]))
    });
    counted.unwrap_or_else(|| message.to_owned())
}

/// Reading ends too early, or a decoder does not know the bytes: that is the file's fault.
fn from_io_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            Error::data(format!("the file is cut short or damaged: {error}"))
        }
        // The source is kept: whoever wrote knows where, and can say what to do.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Error::storage("a file cannot be written").with_source(
                error
                    .raw_os_error()
                    .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error),
            )
        }
        _ => Error::storage(error.to_string()),
    }
}

fn undecodable(message: &str) -> Error {
    Error::data(format!("the Parquet data cannot be decoded: {}", plain_text(message)))
}

/// An error's text without the layers' own prefixes, which say nothing to a user.
pub(crate) fn plain_text(text: &str) -> String {
    const LAYERS: [&str; 13] = [
        "Arrow: ",
        "Arrow error: ",
        "Cast error: ",
        "Compute error: ",
        "EOF: ",
        "External: ",
        "External error: ",
        "Invalid argument error: ",
        "Io error: ",
        "Ipc error: ",
        "Parquet argument error: ",
        "Parquet error: ",
        "Parser error: ",
    ];
    let mut rest = text;
    while let Some(inner) = LAYERS.iter().find_map(|layer| rest.strip_prefix(layer)) {
        rest = inner;
    }
    rest.to_owned()
}

/// A message without its middle where it is long: it may repeat a value of the data or of the SQL,
/// which may be of any length.
#[cfg(feature = "python")]
pub(crate) fn shortened(text: String) -> String {
    const SHOWN: usize = 4000;
    let (Some((head, _)), Some((tail, _))) =
        (text.char_indices().nth(SHOWN), text.char_indices().nth_back(SHOWN / 4))
    else {
        return text;
    };
    if tail <= head {
        return text;
    }
    format!("{} … ({} bytes are left out) … {}", &text[..head], tail - head, &text[tail..])
}

/// Up to twenty names, comma-separated, and how many more there are.
pub fn list_names(names: &[&str]) -> String {
    const SHOWN: usize = 20;
    let mut text = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::Generic { source, .. } => match source.downcast::<Self>() {
                Ok(own) => *own,
                Err(source) => Self::storage("the object store failed").with_source(source),
            },
            object_store::Error::NotSupported { source } => match source.downcast::<Self>() {
                Ok(own) => *own,
                Err(source) => Self::storage("the object store cannot do this").with_source(source),
            },
            other => Self::storage(other.to_string()),
        }
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        Self::from(DataFusionError::from(error))
    }
}

impl From<parquet::errors::ParquetError> for Error {
    fn from(error: parquet::errors::ParquetError) -> Self {
        Self::from(DataFusionError::from(error))
    }
}
